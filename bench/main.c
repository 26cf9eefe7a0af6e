#include <tp/tp.h>
int main(void) { return tp_version() != TP_VERSION; }
