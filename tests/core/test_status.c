/* Status codes, versions and messages. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>
#include <tp/context.h>

#include "core/context.h"

Test(status, names_and_texts)
{
    for (int status = 0; status < TP_STATUS_COUNT; status++) {
        cr_assert_eq(strncmp(tp_status_name((tp_status)status), status ? "TP_ERR_" : "TP_OK", status ? 7 : 5), 0);
        cr_assert_gt(strlen(tp_status_text((tp_status)status)), 1u);
        for (int other = 0; other < status; other++)
            cr_assert_str_neq(tp_status_name((tp_status)status), tp_status_name((tp_status)other));
    }
    cr_assert_str_eq(tp_status_name(TP_ERR_SHAPE), "TP_ERR_SHAPE");
    cr_assert_str_eq(tp_status_text(TP_ERR_SHAPE), "shapes do not fit");
    cr_assert_str_eq(tp_status_name(TP_STATUS_COUNT), "TP_ERR_?");
    cr_assert_str_eq(tp_status_name((tp_status)-1), "TP_ERR_?");
    cr_assert_not_null(tp_status_text((tp_status)12345));
}

Test(status, version)
{
    cr_assert_eq(tp_version(), TP_VERSION);
}

static void *other_thread(void *seen)
{
    cr_assert_str_empty(tp_last_message());
    tpi_message(TP_ERR_IO, "of the other thread");
    *(bool *)seen = true;
    return NULL;
}

Test(status, message_is_of_the_thread)
{
    cr_assert_str_empty(tp_last_message());
    cr_assert_eq(tpi_message(TP_ERR_SHAPE, "rows %d, cols %d", 3, 4), TP_ERR_SHAPE);
    cr_assert_str_eq(tp_last_message(), "rows 3, cols 4");
    bool seen = false;
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, other_thread, &seen), 0);
    pthread_join(thread, NULL);
    cr_assert(seen);
    cr_assert_str_eq(tp_last_message(), "rows 3, cols 4");
    tpi_message(TP_ERR_SHAPE, "again: %s", tp_last_message()); /* may quote itself */
    cr_assert_str_eq(tp_last_message(), "again: rows 3, cols 4");
}

Test(status, long_messages_are_cut)
{
    char text[2 * TPI_MESSAGE_BYTES];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    tpi_message(TP_ERR_IO, "%s", text);
    cr_assert_eq(strlen(tp_last_message()), (size_t)TPI_MESSAGE_BYTES - 1);
}
