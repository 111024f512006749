/* The parts of a model that reading requests needs, without weights: a tiny tokenizer, a template, and an adapter's name. */
#pragma once

#include "serve/api_request.h"
#include "tiny_tokenizer.h"

#include <stdlib.h>
#include <string.h>

static const char tiny_template[] =
    "{% for m in messages %}{{ m.role }}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments.a }}{% endfor %}"
    "{% endfor %}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{{ letter }}";

typedef struct TinyModel {
    HfModel    hf;
    RowAdapter adapter;
    InferModel infer;
    ApiModel   api;
} TinyModel;

/* Opens the tiny model, with a context of 64 tokens; aborts on failure. */
static inline void tiny_model_open(TinyModel *m)
{
    memset(m, 0, sizeof *m);
    m->hf.vocab_size = 29;
    m->adapter.name = "tuned";
    m->infer.model = &m->hf;
    m->infer.row_adapters = &m->adapter;
    m->infer.num_row_adapters = 1;
    if (tokenizer_parse("tiny", tiny_tokenizer, strlen(tiny_tokenizer), &m->infer.tokenizer) != OK) abort();
    m->api = (ApiModel){
        .infer = &m->infer, .scratch = tokenizer_scratch_create(m->infer.tokenizer), .name = "base", .context = 64, .max_tokens = 32};
    if (template_parse("tiny", tiny_template, strlen(tiny_template), &m->api.tmpl) != OK) abort();
}

static inline void tiny_model_close(TinyModel *m)
{
    template_destroy(m->api.tmpl);
    tokenizer_scratch_destroy(m->api.scratch);
    tokenizer_destroy(m->infer.tokenizer);
}
