/* Requests of all kinds and the texts that a decoder makes of them, to be compared bit by bit. Runs on the CPU or, compiled with
 * FAMILY_CUDA, on a GPU. */
#pragma once

#include "infer/decoder.h"

#include "base/philox.h"
#include "on_device.h"

enum { REQUESTS = 24, MOST = 40, CONTEXT = 128 };

typedef struct Text {
    int32_t   prompt[CONTEXT], ids[CONTEXT + 1];
    float     logprobs[CONTEXT + 1], drawn[CONTEXT + 1];
    size_t    prompt_len;
    int64_t   count, stop_after; /* stop_after: tokens after which the caller ends the text; 0: never */
    bool      has_ended;
    DecodeEnd end;
} Text;

static bool take(void *context, const DecodeToken *token)
{
    Text *text = context;
    text->ids[text->count] = token->id;
    text->logprobs[text->count] = token->logprob;
    text->drawn[text->count++] = token->drawn_logprob;
    return text->count != text->stop_after;
}

static void finish(void *context, DecodeEnd end)
{
    Text *text = context;
    EXPECT(!text->has_ended);
    text->has_ended = true;
    text->end = end;
}

/* Request i, with settings of all kinds; every third prompt begins like the first one. */
static DecodeRequest make_request(Text *text, int i, int64_t vocab)
{
    Philox4 words = philox4x32((uint32_t)i, 0, 0, 0, 77);
    *text = (Text){.prompt_len = 1 + words.v[0] % 80};
    for (size_t t = 0; t < text->prompt_len; t++) {
        uint32_t key = i % 3 == 0 && t < 70 ? 0 : (uint32_t)i;
        text->prompt[t] = (int32_t)(philox4x32((uint32_t)t, key, 0, 0, 5).v[0] % (uint32_t)vocab);
    }
    SampleOptions sample = {
        .temperature = i % 4 ? 0.9 : 0, .top_p = i % 5 ? 1 : 0.8, .top_k = i % 7 ? 0 : 20, .seed = 3, .request = (uint64_t)i};
    if (i % 6 == 5) sample.presence = 0.5, sample.frequency = 0.2, sample.repetition = 1.2;
    return (DecodeRequest){.prompt = text->prompt,
                           .prompt_len = text->prompt_len,
                           .max_tokens = 1 + words.v[1] % MOST,
                           .sample = sample,
                           .context = text,
                           .token = take,
                           .end = finish};
}

static void run_all(Decoder *decoder)
{
    for (int steps = 0; decoder_is_busy(decoder); steps++) {
        EXPECT(steps < 100000);
        EXPECT_OK(decoder_step(decoder));
    }
}

__attribute__((unused)) static void expect_same(const Text *a, const Text *b, const char *what)
{
    for (int i = 0; i < REQUESTS; i++) {
        size_t bytes = (size_t)a[i].count * 4;
        bool   same = a[i].count == b[i].count && !memcmp(a[i].ids, b[i].ids, bytes) && !memcmp(a[i].logprobs, b[i].logprobs, bytes) &&
                    !memcmp(a[i].drawn, b[i].drawn, bytes);
        if (!same) test_fail(__FILE__, __LINE__, "%s: text %d differs", what, i);
    }
}
