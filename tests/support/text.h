/* A small text as training data. */
#ifndef TPT_TEXT_H
#define TPT_TEXT_H

#include <tp/data.h>

/* `bytes` bytes of a text with something to learn in it, opened as bytes. Ends the test on failure. */
tp_data *tpt_open_text(int64_t bytes);

#endif
