/* See samples.h. Only tokens that also preceded texts in training (such as BOS) are put before a prompt. Without sample_prompts, samples
 * continue evaluation rows. */
#include "train/samples.h"

#include "base/log.h"
#include "files/file.h"
#include "infer/chat.h"
#include "infer/generate.h"

#include <string.h>

typedef struct Samples {
    const Config     *config;
    const Tokenizer  *tokenizer; /* the run's tokenizer */
    TokenizerScratch *scratch;
    const Template   *tmpl; /* renders prompts; NULL: prompts are used as they are */
} Samples;

static bool keep_id(void *context, int32_t id)
{
    token_ids_push(context, id);
    return true;
}

/* ---- prompts ---- */

/* Encodes a prompt from the run file. */
static Status encode_prompt(Samples *s, const char *prompt, TokenIds *ids)
{
    if (s->tmpl) return chat_encode(s->tmpl, s->tokenizer, s->scratch, &(ChatPrompt){.question = str_of(prompt)}, ids);
    return tokenizer_encode(s->tokenizer, s->scratch, prompt, strlen(prompt), (EncodeOptions){.add_special = true}, ids);
}

/* Finds the prompt in a row: tokens [*out_begin, *out_end) of the first document with a trained token. It never includes the last token of
 * a text, its EOS. */
static void cut_row(const Feeds *row, int64_t seq_len, int64_t *out_begin, int64_t *out_end)
{
    enum { TEXT_TOKENS = 16 };
    int64_t first = 0, end;
    while (first < seq_len - 1 && row->labels[first] == LABEL_IGNORE) first++;
    *out_begin = row->doc_start[first];
    for (end = first + 1; *out_begin == first && end < first + TEXT_TOKENS && end < seq_len && row->labels[end] != LABEL_IGNORE;) end++;
    *out_end = end;
}

/* Cuts a prompt from evaluation row `index`: up to the first answer, or TEXT_TOKENS tokens of a text. *text is the decoded prompt. */
static Status cut_prompt(const Samples *s, const SampleJob *job, int64_t index, TokenIds *ids, StrBuf *text)
{
    int64_t seq_len = plan_program(session_plan(job->session), &entry_eval)->spec.seq, begin, end;
    Arena   arena = {0};
    Feeds   row;
    feeds_init(&row, arena_array(&arena, int32_t, feeds_numel(seq_len, NULL, 0)), seq_len, NULL, 0);
    Status status = loader_read_row(job->eval, index, &row);
    if (status == OK) {
        cut_row(&row, seq_len, &begin, &end);
        for (int64_t i = begin; i < end; i++) token_ids_push(ids, row.tokens[i]);
        status = tokenizer_decode(s->tokenizer, ids->data, ids->len, false, text);
    }
    arena_deinit(&arena);
    return status;
}

/* Makes the prompt of sample `index`. Evaluation rows are chosen at equal distances. */
static Status make_prompt(Samples *s, const SampleJob *job, int index, TokenIds *ids, StrBuf *text)
{
    const StrList *prompts = &s->config->sample_prompts;
    const char    *given = prompts->count ? prompts->items[(size_t)index % prompts->count] : "";
    int64_t        rows = loader_stats(job->eval)->num_rows;
    if (!*given) return cut_prompt(s, job, (2 * (int64_t)index + 1) * rows / (2 * s->config->generate_samples), ids, text);
    strbuf_puts(text, given);
    return encode_prompt(s, given, ids);
}

/* ---- texts ---- */

static Status generate_one(Samples *s, const SampleJob *job, int index)
{
    const Config *c = s->config;
    TokenIds      ids = {0}, out = {0};
    StrBuf        prompt = {0}, text = {0};
    int32_t       stops[2];
    int           num_stops = 0;
    if (tokenizer_eos_id(s->tokenizer) >= 0) stops[num_stops++] = tokenizer_eos_id(s->tokenizer);
    if (job->stop_token >= 0) stops[num_stops++] = job->stop_token;
    Status status = make_prompt(s, job, index, &ids, &prompt);
    if (status == OK) {
        GenerateJob generation = {.prompt = ids.data,
                                  .prompt_len = ids.len,
                                  .max_tokens = c->sample_max_tokens,
                                  .sample = {.temperature = c->sample_temperature, .top_p = 1, .seed = (uint64_t)c->seed + (uint64_t)index},
                                  .eos = stops,
                                  .num_eos = num_stops,
                                  .sink = keep_id,
                                  .context = &out};
        status = generate(job->session, &generation);
    }
    if (status == OK) status = tokenizer_decode(s->tokenizer, out.data, out.len, true, &text);
    if (status == OK && job->metrics) status = metrics_sample(job->metrics, job->step, strbuf_cstr(&prompt), strbuf_cstr(&text), text.len);
    strbuf_deinit(&prompt);
    strbuf_deinit(&text);
    token_ids_deinit(&ids);
    token_ids_deinit(&out);
    return status;
}

static Status generate_all(void *context, const SampleJob *job)
{
    const Config *config = context;
    Samples       s = {config, job->tokenizer, tokenizer_scratch_create(job->tokenizer), job->tmpl};
    for (int i = 0; i < config->generate_samples; i++) {
        if (generate_one(&s, job, i) == OK) continue;
        log_warn("sample %d: %s", i, status_message()); /* a failed sample doesn't stop the run */
        status_clear();
    }
    tokenizer_scratch_destroy(s.scratch);
    return OK;
}

Status train_with_samples(const Config *config, TrainOutcome *out)
{
    TrainHooks hooks = {.context = (void *)config, .sample = generate_all};
    return train_run(config, &hooks, out);
}
