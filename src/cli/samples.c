/* See samples.h. A prompt of nothing starts at BOS, or at EOS, which is what comes before a text where there is no BOS. */
#include "cli/samples.h"

#include "base/log.h"
#include "files/file.h"
#include "infer/chat.h"
#include "infer/generate.h"
#include "train/run_data.h"
#include "train/setup.h"

#include <string.h>

void samples_init(Samples *samples, const Config *config, bool chat)
{
    *samples = (Samples){ .config = config, .chat = chat };
}

void samples_deinit(Samples *samples)
{
    arena_deinit(&samples->arena);
    if (samples->tmpl) template_destroy(samples->tmpl);
    if (samples->scratch) tokenizer_scratch_destroy(samples->scratch);
    if (samples->tokenizer) tokenizer_destroy(samples->tokenizer);
}

static bool keep_id(void *context, int32_t id)
{
    token_ids_push(context, id);
    return true;
}

static Status encode_prompt(Samples *s, const char *prompt, TokenIds *ids)
{
    if (s->tmpl && *prompt) return chat_encode(s->tmpl, s->tokenizer, s->scratch, &(ChatPrompt){ .question = str_of(prompt) }, ids);
    EncodeOptions options = { .add_special = true };
    TRY(tokenizer_encode(s->tokenizer, s->scratch, prompt, strlen(prompt), options, ids));
    int32_t eos = tokenizer_eos_id(s->tokenizer);
    if (!ids->len && eos >= 0) token_ids_push(ids, eos);
    return OK;
}

static Status generate_one(Samples *s, Session *session, const char *prompt, int index, int64_t step, Metrics *metrics)
{
    const Config *c = s->config;
    TokenIds      ids = { 0 }, out = { 0 };
    StrBuf        text = { 0 };
    GenerateStats stats;
    int32_t       eos = tokenizer_eos_id(s->tokenizer);
    Status        status = encode_prompt(s, prompt, &ids);
    if (status == OK) {
        GenerateJob job = { .prompt = ids.data, .prompt_len = ids.len, .max_tokens = c->sample_max_tokens, .vocab_size = tokenizer_vocab_size(s->tokenizer),
                            .sample = { .temperature = c->sample_temperature, .top_p = 1, .seed = (uint64_t)c->seed + (uint64_t)index },
                            .eos = &eos, .num_eos = eos >= 0, .sink = keep_id, .context = &out };
        status = generate(session, &job, &stats);
    }
    if (status == OK) status = tokenizer_decode(s->tokenizer, out.data, out.len, true, &text);
    if (status == OK) status = metrics_sample(metrics, step, prompt, strbuf_cstr(&text), text.len);
    strbuf_deinit(&text);
    token_ids_deinit(&ids);
    token_ids_deinit(&out);
    return status;
}

Status samples_generate(void *context, Session *session, int64_t step, Metrics *metrics)
{
    Samples *s = context;
    if (!s->tokenizer) {
        const char *dir;
        TRY(setup_tokenizer_dir(&s->arena, s->config, &dir));
        TRY(tokenizer_load(dir, &s->tokenizer));
        s->scratch = tokenizer_scratch_create(s->tokenizer);
        if (s->chat) TRY(run_data_template(s->config, dir, &s->tmpl));
    }
    for (int i = 0; i < s->config->generate_samples; i++) {
        size_t      count = s->config->sample_prompts.count;
        const char *prompt = count ? s->config->sample_prompts.items[(size_t)i % count] : "";
        if (generate_one(s, session, prompt, i, step, metrics) == OK) continue;
        log_warn("sample %d: %s", i, status_message()); /* samples never stop a run */
        status_clear();
    }
    return OK;
}
