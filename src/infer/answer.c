/* See answer.h. */
#include "infer/answer.h"

#include <math.h>
#include <string.h>

/* Whether the prompt has a token that isn't special. If so, a leading space of the answer is part of its text. */
static bool has_text(const Tokenizer *tokenizer, const int32_t *ids, size_t count)
{
    for (size_t i = 0; i < count && tokenizer; i++)
        if (!tokenizer_is_special(tokenizer, ids[i])) return true;
    return false;
}

void answer_init(Answer *answer, const Tokenizer *tokenizer, const StrList *stops, int top, const int32_t *prompt, size_t prompt_len)
{
    *answer = (Answer){
        .tokenizer = tokenizer, .stops = stops, .top = top, .stream.started = has_text(tokenizer, prompt, prompt_len), .status = OK};
}

DecoderOptions answer_decoder(const SampleOptions *sample, int top, int64_t rows, int64_t context)
{
    return (DecoderOptions){.rows = rows,
                            .context = context,
                            .best = top > 0 ? top : 0,
                            .penalties = sample->repetition != 1 || sample->presence != 0 || sample->frequency != 0,
                            .biases = sample->num_biases};
}

void answer_deinit(Answer *answer)
{
    strbuf_deinit(&answer->stream.pending);
    token_ids_deinit(&answer->ids);
    strbuf_deinit(&answer->text);
    strbuf_deinit(&answer->logprobs);
    *answer = (Answer){0};
}

/* Returns how many bytes of the text are settled now; cuts the text at a stop text. */
static size_t settle(Answer *a)
{
    const char *data = strbuf_cstr(&a->text);
    size_t      keep;
    for (size_t i = 0; i < a->stops->count; i++) {
        const char *stop = a->stops->items[i], *found = memmem(data + a->settled, a->text.len - a->settled, stop, strlen(stop));
        if (!found) continue;
        a->text.len = (size_t)(found - data);
        a->has_stopped = true;
    }
    keep = a->text.len;
    for (size_t i = 0; i < a->stops->count && !a->has_stopped; i++)
        for (size_t at = a->settled; at < keep; at++)
            if (strncmp(a->stops->items[i], data + at, a->text.len - at) == 0) keep = at;
    return keep;
}

static bool is_special_of(const Answer *a, int32_t id, const StrList *list)
{
    bool found = false;
    for (size_t i = 0; list && i < list->count && tokenizer_is_special(a->tokenizer, id); i++)
        found |= strcmp(list->items[i], tokenizer_id_to_token(a->tokenizer, id)) == 0;
    return found;
}

/* Writes null for -infinity, the log-probability of a banned token: JSON has no infinity. */
static void put_logprob(StrBuf *out, int32_t id, float logprob)
{
    strbuf_printf(out, "{\"id\":%d,\"logprob\":", id);
    if (isfinite(logprob))
        strbuf_printf(out, "%.9g", (double)logprob);
    else
        strbuf_puts(out, "null");
}

static void keep_logprobs(Answer *a, const DecodeToken *token)
{
    if (a->top < 0) return;
    if (a->logprobs.len) strbuf_putc(&a->logprobs, ',');
    put_logprob(&a->logprobs, token->id, token->logprob);
    for (int i = 0; i < a->top; i++) {
        strbuf_puts(&a->logprobs, i ? "," : ",\"top\":[");
        put_logprob(&a->logprobs, token->best_ids[i], token->best_logprobs[i]);
        strbuf_putc(&a->logprobs, '}');
    }
    strbuf_puts(&a->logprobs, a->top ? "]}" : "}");
}

bool answer_push(Answer *a, const DecodeToken *token)
{
    token_ids_push(&a->ids, token->id);
    keep_logprobs(a, token);
    if (!a->tokenizer) return true;
    a->has_stopped = is_special_of(a, token->id, a->stops); /* a special token may decode to no text, so its name is compared */
    if (a->has_stopped) return false;
    a->status = token_stream_push(a->tokenizer, &a->stream, token->id, !is_special_of(a, token->id, a->shown), &a->text);
    if (a->status == OK) a->settled = settle(a);
    return a->status == OK && !a->has_stopped;
}

void answer_end(Answer *a)
{
    if (!a->has_stopped && a->tokenizer) token_stream_finish(&a->stream, &a->text);
    settle(a);
    a->settled = a->text.len;
}

const char *answer_reason(const Answer *a, DecodeEnd end)
{
    if (a->has_stopped) return "stop";
    switch (end) {
    case DECODE_AT_STOP:
        return "eos";
    case DECODE_AT_LENGTH:
        return "length";
    case DECODE_AT_CONTEXT:
        return "context";
    case DECODE_BY_CALLER:
    case DECODE_FAILED:
        break;
    }
    return "stopped";
}

void answer_write_logprobs(const Answer *a, StrBuf *out)
{
    strbuf_printf(out, "[%s]", strbuf_cstr(&a->logprobs));
}
