/* See generate.h. */
#include "infer/generate.h"

typedef struct Text {
    const GenerateJob *job;
    DecodeEnd          end;
} Text;

static bool hand_out(void *context, const DecodeToken *token)
{
    Text *text = context;
    return text->job->sink(text->job->context, token->id);
}

static void note_end(void *context, DecodeEnd end)
{
    Text *text = context;
    text->end = end;
}

Status generate(Session *session, const GenerateJob *job)
{
    Text          text = {.job = job};
    DecodeRequest request = {.prompt = job->prompt,
                             .prompt_len = job->prompt_len,
                             .max_tokens = job->max_tokens,
                             .sample = job->sample,
                             .stops = job->eos,
                             .num_stops = job->num_eos,
                             .context = &text,
                             .token = hand_out,
                             .end = note_end};
    Decoder      *decoder;
    TRY(decoder_create(session, &decoder));
    Status status = decoder_submit(decoder, &request, NULL);
    while (status == OK && decoder_is_busy(decoder)) status = decoder_step(decoder);
    decoder_destroy(decoder);
    return status == OK && text.end == DECODE_FAILED ? ERR_DIVERGED : status;
}
