/* What every op's infer, cost and kernels share: checks of inputs that say what was expected, sums of bytes, blocks of
 * rows. */
#pragma once

#include "base/pool.h"
#include "base/small_float.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "ops/vec.h"

/* Dims for infer_input; -1: any. */
#define DIMS(...) \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) \
    { \
        __VA_ARGS__ \
    }

/* Input k has one of these dtypes and these dims. `name` is its name in ops.def, for the message. The input must be
 * present. */
NODISCARD Status infer_input(const Node *node, int k, const char *name, DTypeSet dtypes, int ndim, const int64_t *dims);

/* Input k has one of these dtypes and the dims of `like`. */
NODISCARD Status infer_like(const Node *node, int k, const char *name, DTypeSet dtypes, const TensorType *like);

/* Input k is a float tensor of at least min_ndim dims. */
NODISCARD Status infer_float(const Node *node, int k, const char *name, int min_ndim);

/* The type of a parameter's gradient, which the op by itself would make as *type: of acc's dtype (input `acc`, checked) where
 * there is one, else of attribute dw_dtype where that is set. */
NODISCARD Status infer_dw(const Node *node, int acc, const char *name, int64_t dw_dtype, TensorType *type);

/* The result of a product by codes, of input 0 (...,K) and input b (M,K), whose attributes are ScaledLinearAttrs: [bias (M)], [acc (...,M)]
 * -> y (...,M), which is of acc's dtype where there is one. */
NODISCARD Status infer_product(Node *node, int b, int bias, int acc);

/* The types of what another op makes of an output (OpCodes), whose type is set; absent where attribute `codes` is 0. */
NODISCARD Status infer_codes(Node *node, int64_t codes);

/* Whether codes can be made of rows of output `of`: of a multiple of `whole` numbers, and inputs `ins` (a bit each, so far as present) of
 * one dtype. */
bool codes_fit(const Node *node, const TensorType *rows, int64_t whole, uint32_t ins);

/* Attribute rows<m> of DequantiseAttrs. */
#define DEQUANTISE_ATTR(m) \
    { \
        "rows" #m, ATTR_TYPE_INT, offsetof(DequantiseAttrs, rows) + (m) * sizeof(int64_t), 0, false, false \
    }
#define DEQUANTISE_ROWS DEQUANTISE_ATTR(0), DEQUANTISE_ATTR(1), DEQUANTISE_ATTR(2)

/* What the attributes say of a weight of n rows: its dtype, f32 or bf16; the members, if there are any, have n rows together. */
NODISCARD Status infer_dequantised(const DequantiseAttrs *attrs, int64_t n, DType *out);

/* The type of scales of e2m1 codes of this type, row by row or in tiles: ops/lowbit/nvfp4.h says where each lies. */
TensorType nvfp4_scale_type(const TensorType *codes, bool tiled);

/* dims of `like`, of another dtype. */
static inline TensorType type_as(const TensorType *like, DType dtype)
{
    TensorType type = *like;
    type.dtype = dtype;
    return type;
}

/* dims of `like` without the last. */
static inline TensorType type_without_last(const TensorType *like, DType dtype)
{
    TensorType type = type_as(like, dtype);
    type.dim[--type.ndim] = 0;
    return type;
}

/* Cost of an op that reads each input and writes each wanted output once and does `flops` arithmetic operations. What
 * it adds to (an accumulate input) counts as read. */
OpCost cost_streaming(const Node *node, double flops);

/* Bit k of a want mask for grad_emit. */
static inline uint32_t want_bit(bool wanted, int k)
{
    return wanted ? 1u << k : 0;
}

/* Scratch on the stack for one piece of a row, where a tensor is bf16. */
enum { TILE = 1024 };

/* Elements [at, at + count) of a tensor as f32: in place, or converted into scratch. */
static inline const float *tile_load(const TensorView *t, int64_t at, int64_t count, float *scratch)
{
    return vec_load_row(vec_at(t->data, t->type.dtype, at), t->type.dtype, count, scratch);
}

/* Where to compute elements [at, at + count): in place or in scratch; tile_store finishes it. */
static inline float *tile_result(const TensorView *t, int64_t at, float *scratch)
{
    return vec_result_row(vec_at_mut(t->data, t->type.dtype, at), t->type.dtype, scratch);
}

static inline void tile_store(const TensorView *t, int64_t at, const float *src, int64_t count)
{
    vec_store_row(vec_at_mut(t->data, t->type.dtype, at), t->type.dtype, src, count);
}

static inline void tile_add(const TensorView *t, int64_t at, const float *src, int64_t count)
{
    vec_add_row(vec_at_mut(t->data, t->type.dtype, at), t->type.dtype, src, count);
}

/* The largest of `most` and the magnitudes (small_magnitude) of these numbers. */
static inline uint32_t most_magnitude(uint32_t most, const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) most = small_magnitude(x[i]) > most ? small_magnitude(x[i]) : most;
    return most;
}

/* What loops over elements of these tensors compute on (VEC_OF): bf16 if each that is there is bf16, else f32. */
#define TILE_DTYPE(...) \
    tile_dtype((const TensorView *const[]){__VA_ARGS__}, (int)(sizeof((const TensorView *const[]){__VA_ARGS__}) / sizeof(void *)))
static inline DType tile_dtype(const TensorView *const *of, int count)
{
    for (int i = 0; i < count; i++)
        if (of[i]->data && of[i]->type.dtype != DT_BF16) return DT_F32;
    return DT_BF16;
}

/* As tile_load and tile_result, for loops on tile_dtype: only where that is f32 scratch is used. */
static inline const void *tile_in(const TensorView *t, DType dtype, int64_t at, int64_t count, float *scratch)
{
    return dtype == DT_F32 ? tile_load(t, at, count, scratch) : vec_at(t->data, dtype, at);
}

static inline void *tile_out(const TensorView *t, DType dtype, int64_t at, float *scratch)
{
    return dtype == DT_F32 ? tile_result(t, at, scratch) : vec_at_mut(t->data, dtype, at);
}

/* Ends what tile_out began. */
static inline void tile_done(const TensorView *t, DType dtype, int64_t at, const void *result, int64_t count)
{
    if (dtype == DT_F32) tile_store(t, at, result, count);
}

/* Elements of one tensor to another. */
static inline void tile_copy(const TensorView *to, int64_t to_at, const TensorView *from, int64_t from_at, int64_t count)
{
    float scratch[TILE];
    if (to->type.dtype == from->type.dtype) {
        void       *dst = vec_at_mut(to->data, to->type.dtype, to_at);
        const void *src = vec_at(from->data, to->type.dtype, from_at);
        if (dst != src) memcpy(dst, src, (size_t)(dtype_bytes(to->type.dtype, count)));
        return;
    }
    for (int64_t i = 0; i < count; i += TILE) {
        int64_t n = count - i < TILE ? count - i : TILE;
        tile_store(to, to_at + i, tile_load(from, from_at + i, n, scratch), n);
    }
}

static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
static inline int64_t div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Rows a task, so that a task is worth its start: about 16 Ki elements. Depends on shapes alone. */
static inline int64_t rows_per_task(int64_t cols)
{
    return max_i64(1, 16384 / max_i64(cols, 1));
}

/* The same of an op that only moves memory: up to 64 Ki elements, as long as each worker has several tasks. Where two workers write beside
 * each other, each fetches lines of the other. */
static inline int64_t rows_moved(const KernelArgs *args, int64_t rows, int64_t cols)
{
    int64_t share = rows * cols / (8 * pool_num_workers(args->pool));
    return max_i64(1, max_i64(16384, min_i64(65536, share)) / max_i64(cols, 1));
}

/* Sums over rows: rows go in at most MAX_CHUNKS fixed chunks, one task and one partial sum (cols f32 in workspace)
 * each; partial sums are added in order. */
enum { MAX_CHUNKS = 64, MIN_CHUNK_ROWS = 32 };
static inline int64_t chunk_rows(int64_t rows)
{
    return max_i64(MIN_CHUNK_ROWS, div_up(rows, MAX_CHUNKS));
}
static inline int64_t num_chunks(int64_t rows)
{
    return div_up(rows, chunk_rows(rows));
}

/* Chunks a task, as rows_moved of rows. */
static inline int64_t chunks_moved(const KernelArgs *args, int64_t rows)
{
    return max_i64(1, min_i64(4, num_chunks(rows) / (8 * pool_num_workers(args->pool))));
}

/* out[0, cols) (+)= the sum of `count` rows of partial sums, `stride` floats apart, in order of rows. */
void chunks_combine(const TensorView *out, bool accumulate, const float *partial, int64_t count, int64_t stride, int64_t cols);
