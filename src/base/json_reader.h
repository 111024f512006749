/* The seam to the JSON library: a C callback around its event reader, so that nothing else sees C++. Private to json.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum JsonEvent {
    JSON_EVENT_NULL,
    JSON_EVENT_FALSE,
    JSON_EVENT_TRUE,
    JSON_EVENT_NUMBER, /* text as written; no NUL follows */
    JSON_EVENT_STRING, /* text decoded */
    JSON_EVENT_KEY,    /* text decoded */
    JSON_EVENT_OPEN_OBJECT,
    JSON_EVENT_CLOSE_OBJECT,
    JSON_EVENT_OPEN_ARRAY,
    JSON_EVENT_CLOSE_ARRAY,
} JsonEvent;

/* offset: of the event's last byte. text lies in the document; NUL follows it. False stops reading. */
typedef bool (*JsonHandler)(void *context, JsonEvent event, const char *text, size_t len, size_t offset);

/* NULL when the document is well-formed and `handler` never stopped it; else what is wrong, at *out_offset. Decoded strings
 * overwrite text[0..len), which a NUL follows. */
const char *json_read_events(char *text, size_t len, JsonHandler handler, void *context, size_t *out_offset);

#ifdef __cplusplus
}
#endif
