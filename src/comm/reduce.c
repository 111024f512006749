#include "comm/reduce.h"

#include <math.h>
#include <stdio.h>

static bool is_float(DType dtype)
{
    return dtype == DT_F32 || dtype == DT_BF16 || dtype == DT_F16;
}

bool reduce_serves(DType dtype)
{
    return is_float(dtype) || dtype == DT_I32 || dtype == DT_I64;
}

int64_t reduce_bytes(DType dtype)
{
    return is_float(dtype) ? (int64_t)sizeof(float) : (int64_t)sizeof(int64_t);
}

static int64_t whole(const void *src, DType dtype, int64_t i)
{
    return dtype == DT_I32 ? ((const int32_t *)src)[i] : ((const int64_t *)src)[i];
}

static void next_floats(float *sums, const float *src, int64_t count, CommReduce reduce)
{
    if (reduce == COMM_SUM)
        for (int64_t i = 0; i < count; i++) sums[i] += src[i];
    else
        for (int64_t i = 0; i < count; i++) sums[i] = src[i] > sums[i] || isnan(src[i]) ? src[i] : sums[i];
}

static void next_whole(int64_t *sums, const void *src, int64_t count, DType dtype, CommReduce reduce)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t x = whole(src, dtype, i);
        if (reduce == COMM_SUM)
            sums[i] = (int64_t)((uint64_t)sums[i] + (uint64_t)x);
        else if (x > sums[i])
            sums[i] = x;
    }
}

void reduce_first(void *sums, const void *src, int64_t count, DType dtype)
{
    if (is_float(dtype))
        dtype_convert(sums, DT_F32, src, dtype, count);
    else
        for (int64_t i = 0; i < count; i++) ((int64_t *)sums)[i] = whole(src, dtype, i);
}

void reduce_next(void *sums, const void *src, int64_t count, DType dtype, CommReduce reduce)
{
    enum { RUN = 1024 };
    float run[RUN];
    if (dtype == DT_F32) {
        next_floats(sums, src, count, reduce);
    } else if (is_float(dtype)) {
        for (int64_t at = 0; at < count; at += RUN) {
            int64_t n = count - at < RUN ? count - at : RUN;
            dtype_convert(run, DT_F32, (const char *)src + dtype_bytes(dtype, at), dtype, n);
            next_floats((float *)sums + at, run, n, reduce);
        }
    } else {
        next_whole(sums, src, count, dtype, reduce);
    }
}

void reduce_store(void *dst, const void *sums, int64_t count, DType dtype)
{
    if (is_float(dtype))
        dtype_convert(dst, dtype, sums, DT_F32, count);
    else if (dtype == DT_I64)
        memcpy(dst, sums, (size_t)count * sizeof(int64_t));
    else
        for (int64_t i = 0; i < count; i++) ((int32_t *)dst)[i] = (int32_t)(uint64_t)((const int64_t *)sums)[i];
}

/* Bytes of the part that one rank sends or receives. */
static size_t part_bytes(const CommCall *call)
{
    bool reduces = call->kind == COMM_REDUCE_SCATTER || call->kind == COMM_ALL_REDUCE;
    return (size_t)(reduces ? dtype_bytes(call->dtype, call->count) : call->count);
}

size_t comm_send_bytes(const CommCall *call, int size)
{
    return part_bytes(call) * (size_t)(call->kind == COMM_REDUCE_SCATTER ? size : 1);
}

size_t comm_recv_bytes(const CommCall *call, int size)
{
    return part_bytes(call) * (size_t)(call->kind == COMM_ALL_GATHER ? size : 1);
}

void comm_part(int64_t count, int rank, int size, int64_t *out_begin, int64_t *out_end)
{
    int64_t part = (count / size + 16) / 16 * 16, begin = part * rank, end = begin + part;
    *out_begin = begin < count ? begin : count;
    *out_end = end < count ? end : count;
}

void comm_call_text(const CommCall *call, char *out, size_t size)
{
    static const char *const names[COMM_KIND_COUNT] = {"barrier", "all_gather", "broadcast", "reduce_scatter", "all_reduce"};
    const char              *name = names[call->kind];
    long long                count = (long long)call->count;
    if (call->kind == COMM_BARRIER)
        snprintf(out, size, "%s", name);
    else if (call->kind == COMM_ALL_GATHER)
        snprintf(out, size, "%s of %lld bytes", name, count);
    else if (call->kind == COMM_BROADCAST)
        snprintf(out, size, "%s of %lld bytes from rank %d", name, count, call->root);
    else
        snprintf(out, size, "%s of %lld %s, %s", name, count, dtype_info(call->dtype)->name, call->reduce == COMM_SUM ? "sum" : "max");
}

bool comm_call_same(const CommCall *a, const CommCall *b)
{
    return a->kind == b->kind && a->root == b->root && a->dtype == b->dtype && a->reduce == b->reduce && a->count == b->count;
}

bool comm_calls_match(const CommCall *first, const CommCall *other, char *why, size_t size)
{
    char texts[2][96];
    if (comm_call_same(first, other)) return true;
    comm_call_text(first, texts[0], sizeof texts[0]);
    comm_call_text(other, texts[1], sizeof texts[1]);
    snprintf(why, size, "it calls %s, rank 0 calls %s: all ranks must make the same calls", texts[1], texts[0]);
    return false;
}
