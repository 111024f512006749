/* Driver for template_random.py: for each line of JSON {"template", "context"} writes a line {"text"} or {"error"}. */
#include "text/template/template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Status render_line(const JsonValue *line, StrBuf *out)
{
    const JsonValue *source = json_get(line, "template"), *context = json_get(line, "context");
    Template        *tmpl;
    TemplateOutput   text;
    FAIL_IF(!source || source->type != JSON_STRING, ERR_INVALID, "no template");
    TRY(template_parse("t", source->string.data, source->string.len, &tmpl));
    TemplateInput input = {.variables = context, .now_unix = 1700000000};
    Status        status = template_render(tmpl, &input, &text);
    template_destroy(tmpl);
    if (status != OK) return status;
    strbuf_puts(out, "{\"text\": ");
    json_write_string(out, strbuf_cstr(&text.text), text.text.len);
    strbuf_puts(out, ", \"spans\": [");
    for (size_t i = 0; i < text.num_spans; i++) strbuf_printf(out, "%s[%zu, %zu]", i ? ", " : "", text.spans[i].begin, text.spans[i].end);
    strbuf_puts(out, "]}");
    template_output_deinit(&text);
    return OK;
}

int main(void)
{
    char  *line = NULL;
    size_t capacity = 0;
    for (ssize_t n; (n = getline(&line, &capacity, stdin)) > 0;) {
        Arena     arena = {0};
        JsonValue json;
        StrBuf    out = {0};
        Status    status = json_parse(&arena, "stdin", line, (size_t)n, &json);
        if (status == OK) status = render_line(&json, &out);
        if (status != OK) {
            strbuf_puts(&out, "{\"error\": ");
            json_write_string(&out, status_message(), strlen(status_message()));
            strbuf_puts(&out, "}");
        }
        puts(strbuf_cstr(&out));
        fflush(stdout);
        strbuf_deinit(&out);
        arena_deinit(&arena);
    }
    free(line);
    return 0;
}
