/* See head_bench.h. Hidden states are in the device's memory and change from batch to batch; they are scaled so that logits spread like
 * a language model's. */
#include "measure/head_bench.h"

#include "base/clock.h"
#include "base/philox.h"
#include "device/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 8, WARM_UP = 16 };

typedef struct HeadBench {
    const HeadBenchOptions *options;
    HeadRanks              *decoder;
    Device                 *device;          /* the first device of the decoder */
    void                   *hidden[BATCHES]; /* in the device's memory */
    int32_t                *ids;
    int64_t                 queued;
} HeadBench;

/* Draws uniform values with this standard deviation. */
static void draw(float *out, int64_t count, uint64_t key, double deviation)
{
    float factor = (float)(deviation * 1.7320508075688772 / 2147483648.0);
    for (int64_t i = 0; i < count; i += 4) {
        Philox4 word = philox4x32((uint32_t)(i / 4), (uint32_t)(i / 4 >> 32), 0, 0, key);
        for (int64_t k = i; k < i + 4 && k < count; k++) out[k] = factor * (float)(int32_t)word.v[k - i];
    }
}

/* ---- opening ---- */

static Status open_decoder(HeadBench *b)
{
    const HeadBenchOptions *o = b->options;
    int64_t                 numel = o->vocab * o->dim;
    float                  *matrix = malloc_or_end((size_t)numel * sizeof(float));
    draw(matrix, numel, 1, 0.02);
    HeadDecoderOptions options = {.vocab = o->vocab,
                                  .dim = o->dim,
                                  .rows = o->rows,
                                  .dtype = o->dtype,
                                  .matrix = {.data = matrix},
                                  .strategy = o->strategy,
                                  .temperature = 0.8,
                                  .top_k = 50,
                                  .top_p = 0.9};
    Status             status = head_ranks_open(&options, o->device, 0, (int)o->threads, &b->decoder);
    if (status == OK) b->device = head_ranks_device(b->decoder);
    free(matrix);
    return status;
}

static Status make_hidden(HeadBench *b)
{
    const HeadBenchOptions *o = b->options;
    int64_t                 numel = o->rows * o->dim;
    size_t                  bytes = (size_t)dtype_bytes(o->hidden, numel);
    float                  *values = malloc_or_end((size_t)numel * sizeof(float));
    void                   *codes = malloc_or_end(bytes);
    Status                  status = OK;
    for (int i = 0; i < BATCHES && status == OK; i++) {
        draw(values, numel, 2 + (uint64_t)i, 3 / (0.02 * sqrt((double)o->dim)));
        dtype_encode(o->hidden, values, numel, codes);
        status = b->device->api->alloc(b->device, SPACE_DEVICE, bytes, &b->hidden[i]);
        if (status == OK) status = b->device->api->upload(b->device, b->hidden[i], codes, bytes);
    }
    free(values);
    free(codes);
    return status;
}

static void close_bench(HeadBench *b)
{
    for (int i = 0; i < BATCHES; i++)
        if (b->hidden[i]) b->device->api->free(b->device, SPACE_DEVICE, b->hidden[i]);
    head_ranks_close(b->decoder);
    free(b->ids);
}

/* ---- timing ---- */

static Status queue(HeadBench *b)
{
    return head_ranks_queue(b->decoder, b->hidden[b->queued++ % BATCHES], b->options->hidden, true, b->options->rows);
}

static Status result(HeadBench *b)
{
    return head_ranks_result(b->decoder, b->ids, b->options->rows);
}

/* Runs the first batches one at a time: times the very first, and hashes the ids of all. */
static Status begin(HeadBench *b, HeadTimes *out)
{
    double start = clock_seconds();
    out->ids = 14695981039346656037u;
    for (int i = 0; i < WARM_UP; i++) {
        TRY(queue(b));
        TRY(result(b));
        if (i == 0) out->first = clock_seconds() - start;
        for (int64_t row = 0; row < b->options->rows; row++) out->ids = (out->ids ^ (uint32_t)b->ids[row]) * 1099511628211u;
    }
    return OK;
}

static Status time_alone(HeadBench *b, HeadTimes *out)
{
    double start = clock_seconds();
    for (int64_t i = 0; i < b->options->batches; i++) {
        TRY(queue(b));
        TRY(result(b));
    }
    out->alone = (clock_seconds() - start) / (double)b->options->batches;
    return OK;
}

static Status time_in_flight(HeadBench *b, HeadTimes *out)
{
    double count = (double)b->options->batches, squares = 0, last, start;
    out->least = INFINITY;
    out->most = 0;
    TRY(queue(b));
    TRY(queue(b));
    TRY(result(b));
    last = start = clock_seconds();
    for (int64_t i = 0; i < b->options->batches; i++) {
        TRY(queue(b));
        TRY(result(b));
        double at = clock_seconds(), took = at - last;
        squares += took * took;
        out->least = fmin(out->least, took);
        out->most = fmax(out->most, took);
        last = at;
    }
    TRY(result(b));
    out->mean = (last - start) / count;
    out->sigma = sqrt(fmax(0, squares / count - out->mean * out->mean));
    return OK;
}

static Status measure(HeadBench *b, HeadTimes *out)
{
    const HeadBenchOptions *o = b->options;
    DeviceFacts             facts;
    TRY(open_decoder(b));
    TRY(b->device->api->facts(b->device, &facts));
    device_use_rates(&facts);
    b->ids = malloc_or_end((size_t)o->rows * sizeof *b->ids);
    TRY(make_hidden(b));
    TRY(begin(b, out));
    TRY(time_alone(b, out));
    TRY(time_in_flight(b, out));
    snprintf(out->device, sizeof out->device, "%s", facts.name);
    out->moved = dtype_bytes(o->dtype, o->vocab * o->dim) + dtype_bytes(o->hidden, o->rows * o->dim);
    out->limit = facts.bandwidth > 0 ? (double)out->moved / facts.bandwidth / head_ranks_count(b->decoder) : 0;
    out->bytes = head_ranks_bytes(b->decoder);
    return OK;
}

Status head_bench_run(const HeadBenchOptions *options, HeadTimes *out)
{
    HeadBench b = {.options = options};
    *out = (HeadTimes){0};
    Status status = measure(&b, out);
    close_bench(&b);
    return status;
}
