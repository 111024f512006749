/* Any body of a request is read or refused with a message; values that were read are within the limits of their fields. The first byte
 * chooses the route, and whether the template prints tool calls in a form that can be forced. */
#include "../serve/tiny_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static TinyModel  model;
static Template  *plain, *calling;
static const char calling_template[] = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}{{ m.role }}{{ "
                                       "m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson "
                                       "}}{% endfor %}{% endfor %}";

static void check(const ApiRequest *q)
{
    if (!q->model || !q->num_prompts || q->num < 1 || q->num > 128 || q->max_tokens > 32 || q->sample.num_biases > 300) abort();
    for (int i = 0; i < q->num_prompts; i++) {
        const ApiPrompt *p = &q->prompts[i];
        if (!p->num || p->num > 64 || p->first + p->num > q->ids.len) abort();
    }
    for (int i = 0; i < q->forced.num; i++)
        if (!q->forced.names[i][0] || !q->calls_tools || q->wants_json) abort();
    for (size_t i = 0; i < q->ids.len; i++)
        if (q->ids.data[i] < 0 || q->ids.data[i] > 28) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ApiRequest q;
    if (!model.api.infer) {
        tiny_model_open(&model);
        plain = model.api.tmpl;
        if (template_parse("calling", calling_template, strlen(calling_template), &calling) != OK) abort();
    }
    if (!size) return 0;
    model.api.tmpl = data[0] & 4 ? calling : plain;
    Str body = {(const char *)data + 1, size - 1};
    switch (data[0] % 4) {
    case 0:
    case 1:
        if (api_read(&model.api, data[0] % 4 ? API_CHAT : API_TEXT, body, &q) == OK)
            check(&q);
        else if (!status_message()[0] || (q.status != 400 && q.status != 404))
            abort();
        break;
    case 2:
        if (api_read_tokenize(&model.api, body, &q) != OK && !status_message()[0]) abort();
        break;
    case 3:
        if (api_read_detokenize(&model.api, body, &q) != OK && !status_message()[0]) abort();
        break;
    }
    api_request_deinit(&q);
    status_clear();
    return 0;
}
