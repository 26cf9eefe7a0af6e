/* An outside program: C11 and C++17. */
#include <stdio.h>
#include <tp/tp.h>

int main(void)
{
    int64_t covered = 0;
    for (int64_t rank = 0; rank < 8; rank++) {
        tp_range range = tp_shard_range(12, 8, rank);
        covered += range.end - range.begin;
    }
    printf("tp %d: 12 heads on 8 ranks, %d dealt out\n", tp_version(), (int)covered);
    return tp_version() == TP_VERSION && covered == 12 ? 0 : 1;
}
