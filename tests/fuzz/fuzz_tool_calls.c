/* Any answer can be read, with the same result however it is cut. The reported parts hold all its text except calls, marks and blanks. The
 * first byte says how it is cut. */
#include "serve/tool_calls.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct Told {
    StrBuf all; /* reported texts and calls, with a 1 byte around calls; a 0 byte of a text is replaced by 1 */
    size_t calls, text_bytes;
} Told;

static void put_text(void *context, Str text)
{
    Told *told = context;
    told->text_bytes += text.len;
    for (size_t i = 0; i < text.len; i++) strbuf_putc(&told->all, text.data[i] ? text.data[i] : 1);
}

static void put_call(void *context, Str name, Str arguments)
{
    Told     *told = context;
    Arena     arena = {0};
    JsonValue value;
    if (!name.len || json_parse(&arena, "arguments", arguments.data, arguments.len, &value) != OK || value.type != JSON_OBJECT) abort();
    arena_deinit(&arena);
    told->calls++;
    strbuf_putc(&told->all, 0);
    strbuf_append(&told->all, name.data, name.len);
    strbuf_putc(&told->all, 0);
    strbuf_append(&told->all, arguments.data, arguments.len);
    strbuf_putc(&told->all, 0);
}

static Told read_cut(Str text, size_t step)
{
    Told       told = {0};
    ToolReader reader;
    tool_reader_init(&reader, (ToolSink){&told, put_text, put_call});
    for (size_t at = 0; at < text.len; at += step)
        tool_reader_push(&reader, (Str){text.data + at, text.len - at < step ? text.len - at : step});
    tool_reader_end(&reader);
    tool_reader_deinit(&reader);
    return told;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size) return 0;
    Str  text = {(const char *)data + 1, size - 1};
    Told whole = read_cut(text, size), cut = read_cut(text, data[0] ? data[0] : 1);
    if (whole.all.len != cut.all.len || memcmp(strbuf_cstr(&whole.all), strbuf_cstr(&cut.all), cut.all.len) != 0) abort();
    if (whole.text_bytes > text.len || (!whole.calls && whole.text_bytes != text.len)) abort();
    for (size_t i = 0; i < text.len && !whole.calls; i++)
        if (whole.all.data[i] != (text.data[i] ? text.data[i] : 1)) abort();
    strbuf_deinit(&whole.all);
    strbuf_deinit(&cut.all);
    return 0;
}
