/* A source reads the file's bytes into a buffer, from which they are copied or unpacked into the window. */
#include "data/stream.h"

#include "data/unpack.h"
#include "files/file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { INPUT_BYTES = 1 << 17, WINDOW_FIRST_BYTES = 1 << 18, WINDOW_MEMORY_BYTES = 1 << 12 };

struct StreamSource {
    int                  fd;     /* -1: the input is memory */
    Str                  memory; /* the part of the memory not read yet */
    Coding               coding;
    Unpacker             unpacker;
    const unsigned char *input;  /* `buffer`, or the memory itself */
    unsigned char       *buffer; /* (INPUT_BYTES) NULL: the input is memory */
    size_t               input_at, input_end;
    bool                 input_done;
    uint64_t             read_bytes, given_bytes, file_bytes;
};

static Status read_file(const char *path, StreamSource *source, void *out, size_t room, size_t *given)
{
    ssize_t n;
    do {
        n = read(source->fd, out, room);
    } while (n < 0 && errno == EINTR);
    if (n < 0) return file_fail("read", path);
    *given = (size_t)n;
    source->read_bytes += (uint64_t)n;
    return OK;
}

/* Refills an empty input buffer. */
static Status input_fill(const char *path, StreamSource *source)
{
    if (source->input_at < source->input_end || source->input_done) return OK;
    size_t n = 0;
    if (source->fd < 0) {
        n = source->memory.len; /* all of the memory at once */
        source->input = (const unsigned char *)source->memory.data;
        source->memory.len = 0;
        source->read_bytes += n;
    } else {
        TRY(read_file(path, source, source->buffer, INPUT_BYTES, &n));
        source->input = source->buffer;
    }
    source->input_at = 0;
    source->input_end = n;
    source->input_done = n == 0;
    return OK;
}

static Status unpack(const char *path, StreamSource *source, char *out, size_t room, size_t *given)
{
    const unsigned char *at = source->input + source->input_at, *end = source->input + source->input_end;
    const char          *wrong = unpacker_step(&source->unpacker, &at, end, out, room, given);
    source->input_at = (size_t)(at - source->input);
    FAIL_IF(wrong, ERR_INVALID, "%s: damaged %s data near byte %llu: %s", path, coding_name(source->coding),
            (unsigned long long)(source->read_bytes - (uint64_t)(end - at)), wrong);
    return OK;
}

/* Reads at least one byte into out[0..room); *given 0: the end. */
static Status source_read(const char *path, StreamSource *source, char *out, size_t room, size_t *given)
{
    *given = 0;
    while (*given == 0) {
        if (source->coding == CODING_PLAIN && source->fd >= 0 && source->input_at == source->input_end)
            return read_file(path, source, out, room, given); /* no coding: read straight into the window */
        TRY(input_fill(path, source));
        bool is_empty = source->input_at == source->input_end;
        if (source->coding == CODING_PLAIN) {
            size_t left = source->input_end - source->input_at;
            *given = left < room ? left : room;
            if (*given) memcpy(out, source->input + source->input_at, *given);
            source->input_at += *given;
        } else {
            TRY(unpack(path, source, out, room, given));
        }
        if (is_empty && *given == 0) {
            FAIL_IF(source->unpacker.in_member, ERR_INVALID, "%s: the compressed data ends too early; the file was cut", path);
            return OK;
        }
    }
    source->given_bytes += *given;
    FAIL_IF(source->coding != CODING_PLAIN && source->given_bytes > EXPAND_FREE_BYTES &&
                source->given_bytes / EXPAND_MAX_RATIO > source->read_bytes,
            ERR_INVALID, "%s: expands more than %d-fold; refused as a decompression bomb", path, EXPAND_MAX_RATIO);
    return OK;
}

Status stream_more(Stream *stream)
{
    size_t held = stream->end - stream->begin;
    FAIL_IF(held > RECORD_MAX_BYTES, ERR_INVALID, "%s: a record of more than %d MiB; is this the right format?", stream->path,
            RECORD_MAX_BYTES >> 20);
    if (stream->begin > 0 && held <= stream->begin) {
        memmove(stream->data, stream->data + stream->begin, held);
        stream->begin = 0;
        stream->end = held;
    }
    if (stream->end == stream->capacity) {
        size_t first = stream->source->fd < 0 ? WINDOW_MEMORY_BYTES : WINDOW_FIRST_BYTES;
        size_t capacity = stream->capacity ? stream->capacity * 2 : first;
        stream->data = realloc_or_end(stream->data, capacity);
        stream->capacity = capacity;
    }
    size_t given;
    TRY(source_read(stream->path, stream->source, stream->data + stream->end, stream->capacity - stream->end, &given));
    stream->end += given;
    stream->at_end = given == 0;
    return OK;
}

static Status source_open(const char *path, StreamSource *source)
{
    source->fd = file_open(path, O_RDONLY);
    if (source->fd < 0) return file_fail("open", path);
    struct stat about;
    if (fstat(source->fd, &about) != 0) return file_fail("read", path);
    FAIL_IF(S_ISDIR(about.st_mode), ERR_INVALID, "%s: is a folder, want a file", path);
    source->file_bytes = (uint64_t)about.st_size;
    source->buffer = malloc_or_end(INPUT_BYTES);
    return OK;
}

/* Finds the coding from the first CODING_BYTES. A pipe may have to be read several times to get these. */
static Status source_init(const char *path, StreamSource *source)
{
    TRY(input_fill(path, source));
    size_t given = source->input_end;
    while (given > 0 && source->fd >= 0 && source->input_end < CODING_BYTES) {
        TRY(read_file(path, source, source->buffer + source->input_end, INPUT_BYTES - source->input_end, &given));
        source->input_end += given;
    }
    source->coding = coding_of((Str){(const char *)source->input, source->input_end});
    if (source->coding != CODING_PLAIN) unpacker_init(&source->unpacker, source->coding);
    return OK;
}

static Status skip_byte_order_mark(Stream *stream)
{
    while (stream->end < 4 && !stream->at_end) TRY(stream_more(stream));
    const unsigned char *first = (const unsigned char *)stream->data;
    bool                 is_utf16 = stream->end >= 2 && ((first[0] == 0xff && first[1] == 0xfe) || (first[0] == 0xfe && first[1] == 0xff));
    FAIL_IF(is_utf16, ERR_UNSUPPORTED, "%s: UTF-16 or UTF-32 text; convert it to UTF-8", stream->path);
    if (stream->end >= 3 && first[0] == 0xef && first[1] == 0xbb && first[2] == 0xbf) stream->begin = 3;
    return OK;
}

static Status stream_begin(Stream *stream, Status status)
{
    if (status == OK) status = source_init(stream->path, stream->source);
    if (status == OK) status = skip_byte_order_mark(stream);
    if (status != OK) stream_close(stream);
    return status;
}

static void stream_init(Stream *stream, const char *path)
{
    *stream = (Stream){.path = path, .source = calloc(1, sizeof(StreamSource))};
    if (!stream->source) fatal_out_of_memory(sizeof(StreamSource));
    stream->source->fd = -1;
}

Status stream_open(const char *path, Stream *out_stream)
{
    stream_init(out_stream, path);
    return stream_begin(out_stream, source_open(path, out_stream->source));
}

Status stream_open_bytes(const char *name, Str bytes, Stream *out_stream)
{
    stream_init(out_stream, name);
    out_stream->source->memory = bytes;
    out_stream->source->file_bytes = bytes.len;
    return stream_begin(out_stream, OK);
}

void stream_close(Stream *stream)
{
    StreamSource *source = stream->source;
    if (source) {
        if (source->fd >= 0) close(source->fd);
        unpacker_deinit(&source->unpacker);
        free(source->buffer);
    }
    free(source);
    free(stream->data);
    *stream = (Stream){0};
}

double stream_fraction(const Stream *stream)
{
    const StreamSource *source = stream->source;
    return source && source->file_bytes > 0 ? fmin((double)source->read_bytes / (double)source->file_bytes, 1) : 0;
}

Status stream_line(Stream *stream, Str *out_line, bool *out_has)
{
    size_t scanned = 0; /* bytes from begin known to hold no line end */
    for (;;) {
        size_t      from = stream->begin + scanned;
        const char *end = from < stream->end ? memchr(stream->data + from, '\n', stream->end - from) : NULL;
        size_t      len = end ? (size_t)(end - stream->data) - stream->begin : stream->end - stream->begin;
        if (end || (stream->at_end && len > 0)) {
            *out_line = (Str){stream->data + stream->begin, len};
            stream->begin += len + (end != NULL);
            if (out_line->len > 0 && out_line->data[out_line->len - 1] == '\r') out_line->len--;
            *out_has = true;
            return OK;
        }
        *out_has = false;
        if (stream->at_end) return OK;
        scanned = len;
        TRY(stream_more(stream));
    }
}
