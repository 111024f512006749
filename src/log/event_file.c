/* The file is a sequence of TFRecords. A record is the length of its data (u64, little-endian), the masked CRC-32C of these 8 bytes, the
 * data, and the data's masked CRC-32C. The data is a protobuf message Event. The enums below list only the fields that are written. */
#include "log/event_file.h"

#include "files/append.h"
#include "files/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NAME_START "events.out.tfevents."
#define FILE_VERSION "brain.Event:2" /* from this version on, readers drop old steps when a session log says so, instead of guessing */

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION_LOG = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE_VALUE = 2 };
enum { SESSION_STATUS = 1, SESSION_START = 1 };

struct EventFile {
    AppendFile file;
    StrBuf     path;
    StrBuf     event, what, value; /* messages being built: an event, its content, one value of a summary */
    Arena      arena;
};

/* ---- protobuf ---- */

static void put_little(StrBuf *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) strbuf_putc(out, (char)(value >> (8 * i)));
}

static void put_varint(StrBuf *out, uint64_t value)
{
    for (; value >= 0x80; value >>= 7) strbuf_putc(out, (char)(value | 0x80));
    strbuf_putc(out, (char)value);
}

static void put_key(StrBuf *out, int field, int wire)
{
    put_varint(out, (uint64_t)(field << 3 | wire));
}

static void put_number(StrBuf *out, int field, int64_t value)
{
    put_key(out, field, WIRE_VARINT);
    put_varint(out, (uint64_t)value);
}

static void put_bytes(StrBuf *out, int field, const void *data, size_t len)
{
    put_key(out, field, WIRE_BYTES);
    put_varint(out, len);
    strbuf_append(out, data, len);
}

static void put_double(StrBuf *out, int field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(out, field, WIRE_64);
    put_little(out, bits, 8);
}

static void put_float(StrBuf *out, int field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(out, field, WIRE_32);
    put_little(out, bits, 4);
}

/* ---- records ---- */

/* CRC-32C: polynomial 0x1EDC6F41, bit-reversed. A record is short and each step writes one, so no table is needed. */
static uint32_t crc32c(const char *data, size_t len)
{
    uint32_t crc = ~0U;
    for (size_t i = 0; i < len; i++) {
        crc ^= (unsigned char)data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0x82F63B78U & (0U - (crc & 1)));
    }
    return ~crc;
}

static uint32_t masked_crc(const char *data, size_t len)
{
    uint32_t crc = crc32c(data, len);
    return (crc >> 15 | crc << 17) + 0xA282EAD8U;
}

static void put_record(StrBuf *out, const StrBuf *data)
{
    enum { LENGTH_BYTES = 8 };
    put_little(out, data->len, LENGTH_BYTES);
    put_little(out, masked_crc(out->data + out->len - LENGTH_BYTES, LENGTH_BYTES), 4);
    strbuf_append(out, data->data, data->len);
    put_little(out, masked_crc(data->data, data->len), 4);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Adds an event that has these bytes as its field `field`. */
static void add_event(EventFile *e, int64_t step, int field, const void *data, size_t len)
{
    strbuf_clear(&e->event);
    put_double(&e->event, EVENT_WALL_TIME, now());
    if (step) put_number(&e->event, EVENT_STEP, step);
    put_bytes(&e->event, field, data, len);
    put_record(&e->file.waiting, &e->event);
}

/* ---- scalars ---- */

static void add_scalar(EventFile *e, const char *tag, double value)
{
    strbuf_clear(&e->value);
    put_bytes(&e->value, VALUE_TAG, tag, strlen(tag));
    put_float(&e->value, VALUE_SIMPLE_VALUE, (float)value);
    put_bytes(&e->what, SUMMARY_VALUE, e->value.data, e->value.len);
}

static Status write_summary(EventFile *e, int64_t step)
{
    add_event(e, step, EVENT_SUMMARY, e->what.data, e->what.len);
    return append_write(&e->file);
}

Status event_file_step(EventFile *e, const StepMetrics *s)
{
    strbuf_clear(&e->what);
    add_scalar(e, "train/loss", s->loss);
    add_scalar(e, "train/learning_rate", s->lr);
    add_scalar(e, "train/grad_norm", s->norm);
    add_scalar(e, "train/epoch", s->epoch);
    add_scalar(e, "train/tokens_per_second", s->seconds > 0 ? (double)s->step_tokens / s->seconds : 0);
    for (int i = 0; i < s->num_scalars; i++) {
        arena_reset(&e->arena);
        add_scalar(e, arena_printf(&e->arena, "train/scalars/%s", s->scalars[i].name), s->scalars[i].value);
    }
    return write_summary(e, s->step);
}

Status event_file_eval(EventFile *e, const EvalMetrics *eval)
{
    strbuf_clear(&e->what);
    add_scalar(e, "eval/loss", eval->loss);
    return write_summary(e, eval->step);
}

/* ---- the file ---- */

static void add_head(EventFile *e, int64_t first_step)
{
    strbuf_clear(&e->what);
    put_number(&e->what, SESSION_STATUS, SESSION_START);
    add_event(e, 0, EVENT_FILE_VERSION, FILE_VERSION, strlen(FILE_VERSION));
    add_event(e, first_step, EVENT_SESSION_LOG, e->what.data, e->what.len);
}

/* *out: the time for the new file's name, in seconds since 1970: now, or just after the latest time in the folder's names. So the new file
 * sorts last, even after two starts in one second or on hosts whose clocks differ. */
static Status choose_seconds(EventFile *e, const char *folder, long long *out)
{
    const char **names;
    size_t       count, start = strlen(NAME_START);
    *out = (long long)now();
    TRY(file_list(&e->arena, folder, &names, &count));
    for (size_t i = 0; i < count; i++) {
        long long seconds;
        bool      is_one = strncmp(names[i], NAME_START, start) == 0 && sscanf(names[i] + start, "%10lld.", &seconds) == 1;
        if (is_one && seconds >= *out) *out = seconds + 1;
    }
    return OK;
}

static Status create(EventFile *e, const char *folder)
{
    char      host[256] = "";
    long long seconds;
    TRY(choose_seconds(e, folder, &seconds));
    if (gethostname(host, sizeof host - 1) != 0 || !*host) strcpy(host, "localhost");
    for (char *at = host; (at = strchr(at, '/'));) *at = '-';
    strbuf_printf(&e->path, "%s/" NAME_START "%lld.%.64s.%lld.0", folder, seconds, host, (long long)getpid());
    e->file.path = e->path.data;
    e->file.fd = file_open(e->path.data, O_RDWR | O_CREAT | O_EXCL);
    return e->file.fd < 0 ? file_fail("create", e->path.data) : OK;
}

Status event_file_open(const char *folder, int64_t first_step, EventFile **out)
{
    EventFile *events = calloc_or_end(1, sizeof *events);
    events->file.fd = -1;
    Status status = file_make_dirs(folder);
    if (status == OK) status = create(events, folder);
    if (status == OK)
        add_head(events, first_step);
    else
        event_file_close(events);
    if (status == OK) *out = events;
    return status;
}

void event_file_close(EventFile *events)
{
    if (!events) return;
    append_close(&events->file);
    strbuf_deinit(&events->path);
    strbuf_deinit(&events->event);
    strbuf_deinit(&events->what);
    strbuf_deinit(&events->value);
    arena_deinit(&events->arena);
    free(events);
}

Status event_file_sync(EventFile *events)
{
    return append_sync(&events->file);
}
