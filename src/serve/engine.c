/* See engine.h. One mutex protects both the inbox (texts and cancellations from the receiver) and the outbox (events from the engine's
 * thread). Events are stored in one growing buffer of bytes, which the receiver swaps for an empty one. */
#include "serve/engine.h"

#include "base/array.h"
#include "infer/answer.h"
#include "infer/json_guide.h"
#include "infer/row_adapters.h"
#include "serve/tool_calls.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MARKS = 16 };

typedef struct Command {
    EngineText text;
    uint64_t   handle;
    bool       is_cancel;
} Command;

/* A text that was submitted to the decoder. */
typedef struct Active {
    Engine        *engine;
    EngineText     text;
    uint64_t       handle, of_decoder;
    Answer         answer;
    JsonGuide      guide;
    EosIds         eos;             /* tokens that end the text */
    size_t         sent, num_given; /* bytes of its text already sent; given tokens already seen */
    bool           has_ended;       /* a token of eos came */
    struct Active *next;
} Active;

/* An event in the outbox: this record, then its arrays and texts. */
typedef struct Record {
    EngineEvent event;
    size_t      text_len, error_len;
} Record;

struct Engine {
    InferModel     *infer;
    Decoder        *decoder;
    EngineReceiver  receiver;
    const char     *mark_texts[MOST_MARKS];
    StrList         marks; /* the tool-call marks, which stay in texts that call tools */
    JsonTokens     *json;  /* used by the engine's thread alone; NULL until a text needs it */
    pthread_t       thread;
    pthread_mutex_t lock;
    pthread_cond_t  wake;
    /* Protected by the lock. */
    Command    *inbox;
    size_t      num_commands, inbox_capacity;
    StrBuf      outbox;
    bool        is_posted, is_stopping, has_thread;
    uint64_t    handles;
    EngineStats stats;
    /* Used by the engine's thread alone. */
    Active *active;
    StrBuf  events;  /* events of this step, not yet in the outbox */
    StrBuf  failure; /* the message of the device's failure; empty: it works */
    /* Used by the receiver's thread alone. */
    StrBuf taken;
};

/* ---- events ---- */

static void pad_events(StrBuf *out)
{
    while (out->len % _Alignof(max_align_t)) strbuf_putc(out, 0);
}

static void put_event(Engine *e, const EngineEvent *event)
{
    Record record = {.event = *event, .text_len = event->text.len, .error_len = event->error ? strlen(event->error) + 1 : 0};
    size_t top = (size_t)event->top;
    strbuf_append(&e->events, &record, sizeof record);
    if (top) strbuf_append(&e->events, event->top_ids, top * sizeof *event->top_ids);
    if (top) strbuf_append(&e->events, event->top_logprobs, top * sizeof *event->top_logprobs);
    if (record.text_len) strbuf_append(&e->events, event->text.data, record.text_len);
    if (record.error_len) strbuf_append(&e->events, event->error, record.error_len);
    pad_events(&e->events);
}

/* Reads the event at *at, and sets *at to the next one. */
static EngineEvent read_event(const StrBuf *events, size_t *at)
{
    const size_t align = _Alignof(max_align_t);
    Record       record;
    memcpy(&record, events->data + *at, sizeof record);
    const char *data = events->data + *at + sizeof record;
    size_t      top_bytes = (size_t)record.event.top * sizeof(int32_t);
    record.event.top_ids = (const int32_t *)(const void *)data;
    record.event.top_logprobs = (const float *)(const void *)(data + top_bytes);
    data += 2 * top_bytes;
    record.event.text = (Str){data, record.text_len};
    data += record.text_len;
    if (record.error_len) record.event.error = data;
    data += record.error_len;
    *at = ((size_t)(data - events->data) + align - 1) / align * align;
    return record.event;
}

/* Delivers the events of the outbox; runs on the receiver's thread. */
static void deliver(void *context)
{
    Engine *e = context;
    pthread_mutex_lock(&e->lock);
    StrBuf swap = e->outbox;
    e->outbox = e->taken;
    e->taken = swap;
    e->is_posted = false;
    pthread_mutex_unlock(&e->lock);
    for (size_t at = 0; at < e->taken.len;) {
        EngineEvent event = read_event(&e->taken, &at);
        e->receiver.take(e->receiver.context, &event);
    }
    strbuf_clear(&e->taken);
}

static void hand_over(Engine *e)
{
    if (!e->events.len) return;
    pthread_mutex_lock(&e->lock);
    strbuf_append(&e->outbox, e->events.data, e->events.len);
    bool posts = !e->is_posted;
    e->is_posted = true;
    pthread_mutex_unlock(&e->lock);
    strbuf_clear(&e->events);
    if (posts) e->receiver.post(e->receiver.context, deliver, e);
}

/* ---- texts ---- */

static Str unsent(Active *active)
{
    const Answer *answer = &active->answer;
    Str           part = {strbuf_cstr(&answer->text) + active->sent, answer->settled - active->sent};
    active->sent = answer->settled;
    return part;
}

/* Whether the token ends the text. The decoder doesn't know the end tokens, so it reports them like all others, with log-probabilities. */
static bool ends(const Active *active, int32_t id)
{
    for (int i = 0; i < active->eos.num; i++)
        if (active->eos.ids[i] == id) return true;
    return false;
}

static bool take_token(void *context, const DecodeToken *token)
{
    Active     *active = context;
    Answer     *answer = &active->answer;
    EngineEvent event = {.kind = ENGINE_TOKEN,
                         .user = active->text.user,
                         .id = token->id,
                         .logprob = token->logprob,
                         .at = answer->text.len,
                         .is_given = active->num_given < active->text.given,
                         .top = active->text.top,
                         .top_ids = token->best_ids,
                         .top_logprobs = token->best_logprobs};
    bool        goes_on = true;
    event.is_last = !event.is_given && ends(active, token->id);
    active->num_given += event.is_given;
    active->has_ended = event.is_last;
    if (!event.is_given) goes_on = !event.is_last && answer_push(answer, token);
    if (active->text.wants_json && !event.is_given && !event.is_last) {
        bool was_allowed = json_guide_push(&active->guide, token->id);
        goes_on &= was_allowed && !(json_guide_is_whole(&active->guide) && !active->eos.num);
    }
    event.text = unsent(active);
    put_event(active->engine, &event);
    return goes_on;
}

static void free_active(Active *active)
{
    Active **at = &active->engine->active;
    while (*at != active) at = &(*at)->next;
    *at = active->next;
    answer_deinit(&active->answer);
    free(active);
}

static void take_end(void *context, DecodeEnd end)
{
    Active     *active = context;
    Answer     *answer = &active->answer;
    EngineEvent event = {.kind = ENGINE_END, .user = active->text.user};
    answer_end(answer);
    event.text = unsent(active);
    event.at = answer->text.len;
    if (end == DECODE_FAILED || answer->status != OK)
        event.error = status_message();
    else
        event.reason = active->has_ended ? "eos" : answer_reason(answer, end);
    put_event(active->engine, &event);
    free_active(active);
}

/* Sends the end of a text that the decoder doesn't have. */
static void end_with_error(Engine *e, const EngineText *text, const char *error, bool is_refused)
{
    put_event(e, &(EngineEvent){.kind = ENGINE_END, .user = text->user, .error = error, .is_refused = is_refused});
}

static EosIds eos_of(const InferModel *infer, int adapter)
{
    bool is_there = adapter > 0 && adapter <= infer->num_row_adapters; /* false: the base, or an adapter that the decoder refuses */
    return is_there ? infer->row_adapters[adapter - 1].eos : (EosIds){infer->eos, infer->num_eos};
}

static void allow(void *context, uint32_t *words)
{
    Active *active = context;
    json_guide_allow(&active->guide, words);
}

static Status use_guide(Engine *e, Active *active)
{
    if (!active->text.wants_json) return OK;
    if (!e->json) TRY(json_tokens_create(e->infer->tokenizer, infer_num_choices(e->infer), &e->json));
    json_guide_init(&active->guide, e->json, active->eos.ids, active->eos.num);
    json_guide_lead(&active->guide, active->text.leads, active->text.num_leads);
    return OK;
}

static void begin(Engine *e, const Command *command)
{
    const EngineText *text = &command->text;
    InferModel       *infer = e->infer;
    Active           *active = calloc_or_end(1, sizeof *active);
    *active = (Active){.engine = e, .text = *text, .handle = command->handle, .next = e->active};
    if (!text->ignore_eos) active->eos = eos_of(infer, text->adapter);
    DecodeRequest request = {.prompt = text->prompt,
                             .prompt_len = text->prompt_len,
                             .given = text->given,
                             .max_tokens = text->max_tokens,
                             .sample = text->sample,
                             .context = active,
                             .token = take_token,
                             .end = take_end,
                             .adapter = text->adapter,
                             .guide = text->wants_json ? allow : NULL};
    answer_init(&active->answer, infer->tokenizer, text->stops, -1, text->prompt, text->prompt_len);
    if (text->calls_tools) active->answer.shown = &e->marks;
    e->active = active;
    Status status = use_guide(e, active);
    if (status == OK) status = decoder_submit(e->decoder, &request, &active->of_decoder);
    if (status == OK) return;
    end_with_error(e, text, status_message(), true);
    status_clear();
    free_active(active);
}

static void cancel(Engine *e, uint64_t handle)
{
    for (Active *active = e->active; active; active = active->next)
        if (active->handle == handle) {
            decoder_cancel(e->decoder, active->of_decoder);
            return;
        }
}

static void obey(Engine *e, const Command *command)
{
    if (command->is_cancel)
        cancel(e, command->handle);
    else if (e->failure.len)
        end_with_error(e, &command->text, e->failure.data, false);
    else
        begin(e, command);
}

/* The device is lost: ends every text with the error. */
static void fail_all(Engine *e)
{
    strbuf_puts(&e->failure, status_message()[0] ? status_message() : "the device failed");
    while (e->active) {
        end_with_error(e, &e->active->text, e->failure.data, false);
        free_active(e->active);
    }
}

/* ---- the thread ---- */

static bool is_busy(const Engine *e)
{
    return !e->failure.len && decoder_is_busy(e->decoder);
}

/* Waits until there is something to do. Moves the inbox to *out_commands, which the caller frees. False: the engine is stopping. */
static bool take_inbox(Engine *e, Command **out_commands, size_t *out_count)
{
    pthread_mutex_lock(&e->lock);
    while (!e->is_stopping && !e->num_commands && !is_busy(e)) pthread_cond_wait(&e->wake, &e->lock);
    *out_commands = e->inbox;
    *out_count = e->num_commands;
    e->inbox = NULL;
    e->num_commands = e->inbox_capacity = 0;
    bool goes_on = !e->is_stopping;
    pthread_mutex_unlock(&e->lock);
    return goes_on;
}

static void note_stats(Engine *e)
{
    int64_t count = 0, waiting = decoder_num_waiting(e->decoder);
    for (Active *active = e->active; active; active = active->next) count++;
    pthread_mutex_lock(&e->lock);
    e->stats = (EngineStats){.waiting = waiting,
                             .running = count - waiting > 0 ? count - waiting : 0,
                             .preempted = decoder_num_preempted(e->decoder),
                             .pages = e->stats.pages,
                             .pages_free = decoder_pages_free(e->decoder),
                             .has_failed = e->failure.len > 0};
    pthread_mutex_unlock(&e->lock);
}

static void *run(void *context)
{
    Engine  *e = context;
    Command *commands;
    size_t   count;
    while (take_inbox(e, &commands, &count)) {
        for (size_t i = 0; i < count; i++) obey(e, &commands[i]);
        free(commands);
        if (is_busy(e) && decoder_step(e->decoder) != OK) fail_all(e);
        note_stats(e);
        hand_over(e);
    }
    free(commands);
    return NULL;
}

/* ---- for the receiver ---- */

void engine_stop(Engine *e)
{
    if (!e || !e->has_thread) return;
    pthread_mutex_lock(&e->lock);
    e->is_stopping = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    e->has_thread = false;
}

void engine_destroy(Engine *e)
{
    if (!e) return;
    engine_stop(e);
    while (e->active) free_active(e->active);
    decoder_destroy(e->decoder);
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->lock);
    json_tokens_destroy(e->json);
    free(e->inbox);
    strbuf_deinit(&e->outbox);
    strbuf_deinit(&e->taken);
    strbuf_deinit(&e->events);
    strbuf_deinit(&e->failure);
    free(e);
}

Status engine_create(InferModel *infer, const DecoderOptions *options, const EngineReceiver *receiver, Engine **out)
{
    Decoder *decoder;
    TRY(infer_start_decoding(infer, options));
    TRY(decoder_create(infer->session, &decoder));
    Engine *e = calloc_or_end(1, sizeof *e);
    e->infer = infer;
    e->decoder = decoder;
    e->receiver = *receiver;
    e->marks.items = e->mark_texts;
    for (; tool_marks[e->marks.count] && e->marks.count < MOST_MARKS; e->marks.count++)
        e->mark_texts[e->marks.count] = tool_marks[e->marks.count];
    e->stats.pages = e->stats.pages_free = decoder_pages_free(decoder);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    e->has_thread = pthread_create(&e->thread, NULL, run, e) == 0;
    if (!e->has_thread) {
        engine_destroy(e);
        FAIL(ERR_NO_FIT, "the model's thread can't be started: the process may have too many");
    }
    *out = e;
    return OK;
}

static void send_command(Engine *e, const Command *command)
{
    e->inbox = array_room(e->inbox, e->num_commands + 1, &e->inbox_capacity, sizeof *e->inbox);
    e->inbox[e->num_commands++] = *command;
    pthread_cond_signal(&e->wake);
}

uint64_t engine_submit(Engine *e, const EngineText *text)
{
    pthread_mutex_lock(&e->lock);
    Command command = {.text = *text, .handle = ++e->handles};
    send_command(e, &command);
    pthread_mutex_unlock(&e->lock);
    return command.handle;
}

void engine_cancel(Engine *e, uint64_t handle)
{
    pthread_mutex_lock(&e->lock);
    send_command(e, &(Command){.handle = handle, .is_cancel = true});
    pthread_mutex_unlock(&e->lock);
}

EngineStats engine_stats(Engine *e)
{
    pthread_mutex_lock(&e->lock);
    EngineStats stats = e->stats;
    pthread_mutex_unlock(&e->lock);
    return stats;
}
