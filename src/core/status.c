/* Status names and texts, and the message of this thread's last failing call. */
#include <stdarg.h>
#include <stdio.h>

#include "core/context.h"

/* The contract of tp_last_message: one message a thread, so that calls without a context can explain themselves. */
static _Thread_local char thread_message[TPI_MESSAGE_BYTES];

static const char *const status_names[TP_STATUS_COUNT] = {
#define STATUS_NAME(name, text) [name] = #name,
    TP_STATUS_LIST(STATUS_NAME)
#undef STATUS_NAME
};

static const char *const status_texts[TP_STATUS_COUNT] = {
#define STATUS_TEXT(name, text) [name] = text,
    TP_STATUS_LIST(STATUS_TEXT)
#undef STATUS_TEXT
};

static bool is_status(tp_status status)
{
    return (int)status >= 0 && (int)status < TP_STATUS_COUNT;
}

const char *tp_status_name(tp_status status)
{
    return is_status(status) ? status_names[status] : "TP_ERR_?";
}

const char *tp_status_text(tp_status status)
{
    return is_status(status) ? status_texts[status] : "unknown status";
}

const char *tp_last_message(void)
{
    return thread_message;
}

int tp_version(void)
{
    return TP_VERSION;
}

void tpi_message_set(const char *text)
{
    if (text != thread_message)
        snprintf(thread_message, sizeof thread_message, "%s", text);
}

tp_status tpi_message(tp_status status, const char *format, ...)
{
    /* Formatted aside first: an argument may be this thread's own last message. */
    char text[TPI_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    tpi_message_set(text);
    return status;
}
