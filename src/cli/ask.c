/* See ask.h. */
#include "cli/ask.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- flags ---- */

static Status check_numbers(const SampleArgs *s)
{
    const SampleOptions *o = &s->sample;
    FAIL_IF(s->max_tokens < 1, ERR_INVALID, "--max-tokens %lld: expected at least 1", (long long)s->max_tokens);
    FAIL_IF(!(o->temperature >= 0 && isfinite(o->temperature)), ERR_INVALID, "--temperature %g: expected a finite number of at least 0",
            o->temperature);
    FAIL_IF(!(o->top_p > 0 && o->top_p <= 1), ERR_INVALID, "--top-p %g: expected 0 < p <= 1", o->top_p);
    FAIL_IF(o->top_k < 0, ERR_INVALID, "--top-k %lld: expected at least 0", (long long)o->top_k);
    FAIL_IF(!(o->min_p >= 0 && o->min_p <= 1), ERR_INVALID, "--min-p %g: expected 0 to 1", o->min_p);
    FAIL_IF(!(o->repetition > 0 && isfinite(o->repetition)), ERR_INVALID, "--repetition-penalty %g: expected a number above 0; 1: none",
            o->repetition);
    FAIL_IF(!(fabs(o->presence) <= 2), ERR_INVALID, "--presence-penalty %g: expected -2 to 2; 0: none", o->presence);
    FAIL_IF(!(fabs(o->frequency) <= 2), ERR_INVALID, "--frequency-penalty %g: expected -2 to 2; 0: none", o->frequency);
    return OK;
}

static Status parse_id(const char *flag, const char *text, size_t len, const char *expected, int32_t *out)
{
    char *end;
    errno = 0;
    long id = strtol(text, &end, 10);
    FAIL_IF(end != text + len || !len || errno || id < 0 || id > INT32_MAX, ERR_INVALID, "%s %s: expected %s", flag, text, expected);
    *out = (int32_t)id;
    return OK;
}

static Status parse_bias(const char *text, int32_t *out_id, float *out_value)
{
    static const char expected[] = "ID=V: a token's id and the number to add to its score";
    char             *end;
    TRY(parse_id("--logit-bias", text, strcspn(text, "="), expected, out_id));
    const char *value = strchr(text, '=');
    FAIL_IF(!value, ERR_INVALID, "--logit-bias %s: expected %s", text, expected);
    *out_value = strtof(value + 1, &end);
    FAIL_IF(end == value + 1 || *end || !isfinite(*out_value), ERR_INVALID, "--logit-bias %s: expected %s", text, expected);
    return OK;
}

static Status make_biases(CliArgs *args, SampleArgs *s)
{
    size_t   num = s->biases.count + s->bans.count, at = 0;
    int32_t *ids = arena_array(&args->arena, int32_t, num + 1);
    float   *values = arena_array(&args->arena, float, num + 1);
    for (size_t i = 0; i < s->biases.count; i++, at++) TRY(parse_bias(s->biases.items[i], &ids[at], &values[at]));
    for (size_t i = 0; i < s->bans.count; i++, at++) {
        TRY(parse_id("--ban", s->bans.items[i], strlen(s->bans.items[i]), "a token's id", &ids[at]));
        values[at] = -INFINITY;
    }
    for (size_t i = 0; i < num; i++)
        for (size_t k = 0; k < i; k++)
            FAIL_IF(ids[i] == ids[k], ERR_INVALID, "--logit-bias and --ban name token %d twice; expected each once", ids[i]);
    s->sample.bias_ids = ids;
    s->sample.biases = values;
    s->sample.num_biases = (int)num;
    return OK;
}

Status ask_check(CliArgs *args, SampleArgs *s)
{
    for (size_t i = 0; i < s->stops.count; i++) FAIL_IF(!s->stops.items[i][0], ERR_INVALID, "--stop \"\": expected a text");
    TRY(check_numbers(s));
    s->sample.seed = (uint64_t)s->seed;
    return make_biases(args, s);
}

Status ask_open(InferModel *infer, const char *dir, const ModelArgs *m, const SampleArgs *s)
{
    TRY(cli_open_model(infer, dir, m));
    TRY(infer_use_cache(infer, s->kv));
    infer->options.split_k = s->split_k;
    int64_t num = infer_num_choices(infer);
    for (int i = 0; i < s->sample.num_biases; i++)
        FAIL_IF(s->sample.bias_ids[i] >= num, ERR_INVALID, "%s %d: the model has no such token; expected an id from 0 to %lld",
                isfinite(s->sample.biases[i]) ? "--logit-bias" : "--ban", s->sample.bias_ids[i], (long long)num - 1);
    return OK;
}

/* ---- one text ---- */

typedef struct Asking {
    const AskStream *stream;
    Answer          *answer;
    size_t           printed; /* bytes of the text printed so far */
    bool             has_ended;
    DecodeEnd        end;
    Status           status; /* an error of printing, or ERR_DIVERGED after DECODE_FAILED */
} Asking;

static void print_settled(Asking *a)
{
    StrBuf part = {0};
    size_t count = a->answer->settled - a->printed;
    if (!a->stream->prints || a->status != OK || !count) return;
    strbuf_append(&part, a->answer->text.data + a->printed, count);
    a->status = cli_print(&part);
    a->printed += count;
    strbuf_deinit(&part);
}

static bool take_token(void *context, const DecodeToken *token)
{
    Asking *a = context;
    bool    goes_on = answer_push(a->answer, token);
    print_settled(a);
    return goes_on && a->status == OK && !(a->stream->stopped && *a->stream->stopped);
}

static void take_end(void *context, DecodeEnd end)
{
    Asking *a = context;
    a->has_ended = true;
    a->end = end;
    if (end == DECODE_FAILED) a->status = ERR_DIVERGED;
}

Status ask_generate(Decoder *decoder, DecodeRequest *request, const AskStream *stream, Answer *answer, DecodeEnd *out_end)
{
    Asking   a = {.stream = stream, .answer = answer, .status = OK};
    uint64_t handle;
    request->context = &a;
    request->token = take_token;
    request->end = take_end;
    TRY(decoder_submit(decoder, request, &handle));
    while (!a.has_ended) {
        TRY(decoder_step(decoder));
        if (stream->stopped && *stream->stopped && !a.has_ended) decoder_cancel(decoder, handle);
    }
    TRY(answer->status);
    TRY(a.status);
    answer_end(answer);
    print_settled(&a);
    *out_end = a.end;
    return a.status;
}
