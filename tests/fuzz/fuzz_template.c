/* Input: a template, NUL, the variables as JSON. Parses and renders; errors are fine, crashes and leaks are not. */
#include "text/template.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t         len = nul ? (size_t)(nul - data) : size;
    Arena          arena = { 0 };
    JsonValue      variables;
    Template      *tmpl;
    TemplateInput  input = { .now_unix = 1700000000, .max_steps = 5000 };
    if (nul && json_parse(&arena, "json", (const char *)nul + 1, size - len - 1, &variables) == OK &&
        variables.type == JSON_OBJECT)
        input.variables = &variables;
    if (template_parse("fuzz", (const char *)data, len, &tmpl) == OK) {
        TemplateOutput out;
        if (template_render(tmpl, &input, &out) == OK) template_output_deinit(&out);
        template_destroy(tmpl);
    }
    arena_deinit(&arena);
    return 0;
}
