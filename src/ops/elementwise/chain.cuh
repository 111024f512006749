/* The kernels of a chain on CUDA: an interpreter. A thread takes a few units of 16 bytes through all steps, with the latest result in
 * registers. Results that are read later than by the next step are kept in the thread's own column of shared memory. Inputs are copied to
 * that column one iteration ahead, so that memory is busy while steps are computed. A thread keeps to the same columns of the result, so an
 * input with one row for all rows is copied once; inputs with one number for a whole row are read when a step wants them. All threads of a
 * block run the same step, so its code is read once. The host decides where each operand comes from, so that a step takes few instructions
 * besides its arithmetic: at the speed of a copy there is time for about 7 instructions per byte of an element. */
#pragma once

#include "device/cuda/vec_f16.cuh"
#include "ops/mma.cuh"

#include "ops/elementwise/broadcast.h"
#include "ops/elementwise/chain.h"
#include "ops/elementwise/functions.cuh"
#include "ops/elementwise/pairs.cuh"

/* STAGES: iterations whose inputs are in shared memory at a time, the current one included. */
enum { WARP = 32, THREADS = 128, STAGES = 2 };

/* A kernel's T is the dtype of all tensors and steps, or Mixed: values are fp32 in registers, and each tensor and result has a dtype. */
struct Mixed {
};

/* Where an operand comes from. LATEST: the previous step's result, in registers. UNREAD: the step has no such operand. ZERO: an absent
 * input. INPUT: memory. F32, BF16, F16: the thread's column of shared memory, in this dtype; + ONE: it holds one unit, which all units of
 * the thread read. */
typedef enum SourceKind {
    SOURCE_LATEST,
    SOURCE_UNREAD,
    SOURCE_ZERO,
    SOURCE_INPUT,
    SOURCE_F32,
    SOURCE_BF16,
    SOURCE_F16,
    SOURCE_ONE = 16
} SourceKind;

typedef struct Source {
    int kind; /* SourceKind */
    int at;   /* SOURCE_INPUT: index of the input; sources in shared memory: byte where their columns begin */
} Source;

/* What a step has to do, a bit for each. COLUMN: reads the operand from a column of T; LOAD: by load; LATEST: from registers. */
enum { FIRST_COLUMN = 1, FIRST_LOAD = 2, SECOND_COLUMN = 4, SECOND_LATEST = 8, SECOND_LOAD = 16, KEPT = 32, WRITTEN = 64, LAST = 128 };

typedef struct alignas(16) RunStep {
    int    flags, code; /* ChainCode */
    float  number;
    int    dtype; /* DType of the result */
    Source from[CHAIN_OPERANDS];
    int    staged; /* bit k: operand k is an input that is copied for each iteration */
    int    slot;   /* if KEPT: byte of shared memory where the columns of the result begin */
    char  *out;    /* if WRITTEN */
} RunStep;

/* An input that is copied to shared memory. */
typedef struct RunCopy {
    const char *from;
    int         k, bytes, at; /* k: index of the input; bytes: of an element; at: as Source.at */
    bool        dense;        /* the input has the result's dims */
} RunCopy;

/* Computes n / `by` as a product with `factor`, for any n; `by` <= 2^shift < 2 `by`. */
typedef struct Divisor {
    uint32_t by, factor, shift;
} Divisor;

/* A chain as the kernel runs it. A unit is UNIT adjacent elements of a row. Adjacent threads take the first `apart` units, which are whole
 * rows; a thread's next unit is `apart` units further, at the same columns of another row. */
typedef struct ChainRun {
    RunStep     steps[CHAIN_MAX_STEPS];
    RunCopy     copies[CHAIN_MAX_IN]; /* num_staged inputs that are copied for each iteration, then those that are copied once */
    const char *in[CHAIN_MAX_IN];
    signed char dtype[CHAIN_MAX_IN];
    Divisor     dim[TENSOR_MAX_DIMS], row;           /* the result's dims except the last; units in a row */
    uint32_t    step[CHAIN_MAX_IN][TENSOR_MAX_DIMS]; /* as Broadcast.step, except the last dim's */
    uint32_t    col_step[CHAIN_MAX_IN];              /* Broadcast.step of the last dim */
    int         row_dims, count, num_staged, num_copies, stage_bytes;
    uint32_t    units, apart, rows_apart; /* units: of the result; apart: from a thread's unit to its next, in units, and in rows */
} ChainRun;

/* The first of a thread's units in an iteration. */
typedef struct Place {
    uint32_t row, col, unit; /* col: in units */
} Place;

/* ---- places of elements ---- */

static __device__ __forceinline__ uint32_t divided(uint32_t n, const Divisor &d)
{
    uint32_t high = __umulhi(n, d.factor);
    return d.shift ? (high + (n - high) / 2) >> (d.shift - 1) : n;
}

/* Element of input k where a row of the result begins. */
static __device__ __forceinline__ uint32_t row_offset(const ChainRun &run, int k, uint32_t row)
{
    uint32_t at = 0;
#pragma unroll 1
    for (int d = run.row_dims - 1; d > 0; d--) {
        uint32_t above = divided(row, run.dim[d]);
        at += (row - above * run.dim[d].by) * run.step[k][d];
        row = above;
    }
    return at + row * run.step[k][0];
}

/* ---- a thread's column of shared memory: chunks of up to 16 bytes, those of all threads side by side ---- */

template <int UNIT, typename T> struct Chunk {
    enum { N = UNIT * sizeof(T) > 16 ? 16 / sizeof(T) : UNIT, BYTES = N * sizeof(T), EACH_UNIT = UNIT / N };
};

/* The steps for each stage, then the columns. */
extern __shared__ uint4 shared_memory[];

/* Address of the thread's first chunk in columns that begin at byte `at`. columns: the address if chunks have 16 bytes and `at` is 0. */
template <int BYTES> static __device__ __forceinline__ uint32_t column(uint32_t columns, int at)
{
    return columns + at - threadIdx.x * (16 - BYTES);
}

/* Read and write shared memory. The instructions are volatile, so that they stay in order and after the wait for copies. */
template <int BYTES> static __device__ __forceinline__ void load_shared(void *to, uint32_t from)
{
    uint32_t *w = (uint32_t *)to;
    if constexpr (BYTES == 16)
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(from));
    else if constexpr (BYTES == 8)
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(from));
    else if constexpr (BYTES == 4)
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(w[0]) : "r"(from));
    else
        asm volatile("{ .reg .u16 x; ld.shared.u16 x, [%1]; cvt.u32.u16 %0, x; }" : "=r"(w[0]) : "r"(from));
}

template <int BYTES> static __device__ __forceinline__ void store_shared(uint32_t to, const void *from)
{
    const uint32_t *w = (const uint32_t *)from;
    if constexpr (BYTES == 16)
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]));
    else if constexpr (BYTES == 8)
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(w[0]), "r"(w[1]));
    else if constexpr (BYTES == 4)
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(w[0]));
    else
        asm volatile("{ .reg .u16 x; cvt.u16.u32 x, %1; st.shared.u16 [%0], x; }" ::"r"(to), "r"(w[0]));
}

template <int BYTES> static __device__ __forceinline__ void store_global(char *to, const uint32_t *w)
{
    if constexpr (BYTES == 16)
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
    else if constexpr (BYTES == 8)
        asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(w[0]), "r"(w[1]) : "memory");
    else if constexpr (BYTES == 4)
        *(uint32_t *)to = w[0];
    else
        *(uint16_t *)to = (uint16_t)w[0];
}

/* ---- elements ---- */

/* N elements as they are stored, in whole words. */
template <int N, typename T> struct Stored {
    uint32_t words[(N * sizeof(T) + 3) / 4];
};

/* Converts COUNT elements from `begin` on to floats, and back. */
template <int COUNT, int N> static __device__ __forceinline__ void unpack(const Stored<N, float> &s, int begin, float *x)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) x[i] = __uint_as_float(s.words[begin + i]);
}
template <int COUNT, int N> static __device__ __forceinline__ void unpack(const Stored<N, __nv_bfloat16> &s, int begin, float *x)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        uint32_t word = s.words[(begin + i) / 2];
        x[i] = __uint_as_float(i % 2 ? word & 0xFFFF0000u : word << 16);
    }
}
template <int COUNT, int N> static __device__ __forceinline__ void unpack(const Stored<N, __half> &s, int begin, float *x)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) x[i] = __half2float(__ushort_as_half((unsigned short)(s.words[(begin + i) / 2] >> i % 2 * 16)));
}

template <int COUNT, int N, typename T> static __device__ __forceinline__ void pack(const float *x, int begin, Stored<N, T> &s)
{
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) s.words[(begin + i) / 2] = pair_of<T>(x[i], i + 1 < COUNT ? x[i + 1] : 0.0f);
}
template <int COUNT, int N> static __device__ __forceinline__ void pack(const float *x, int begin, Stored<N, float> &s)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) s.words[begin + i] = __float_as_uint(x[i]);
}

/* A thread's values between steps: pairs in words if all are bf16, otherwise floats. */
template <typename T> struct InRegisters {
    typedef float Type;
};
template <> struct InRegisters<__nv_bfloat16> {
    typedef __nv_bfloat16 Type;
};
template <int N, typename T> using Values = Stored<N, typename InRegisters<T>::Type>;

/* The dtype of columns that are read without conversion. */
template <typename T> struct InColumns {
    typedef T Type;
};
template <> struct InColumns<Mixed> {
    typedef float Type;
};
template <typename T> using Column = typename InColumns<T>::Type;

template <int N, typename T> static __device__ __forceinline__ void fill(Stored<N, T> &x, int begin, int count, uint32_t word)
{
#pragma unroll
    for (int i = 0; i < count * (int)sizeof(T) / 4; i++) x.words[begin * sizeof(T) / 4 + i] = word;
}

/* Reads a thread's column of T. one: the column has one unit, which all units of the thread get. */
template <int UNIT, int N, typename T, typename V>
static __device__ __forceinline__ void load_column(uint32_t columns, int at, bool one, Stored<N, V> &x)
{
    enum { BYTES = Chunk<UNIT, T>::BYTES, EACH_UNIT = Chunk<UNIT, T>::EACH_UNIT, CHUNKS = N / Chunk<UNIT, T>::N, WORDS = (BYTES + 3) / 4 };
    uint32_t     from = column<BYTES>(columns, at);
    Stored<N, T> s;
#pragma unroll
    for (int i = 0; i < EACH_UNIT; i++) load_shared<BYTES>(s.words + i * WORDS, from + i * THREADS * BYTES);
    if (one) {
#pragma unroll
        for (int i = EACH_UNIT * WORDS; i < CHUNKS * WORDS; i++) s.words[i] = s.words[i - EACH_UNIT * WORDS];
    } else {
#pragma unroll
        for (int i = EACH_UNIT; i < CHUNKS; i++) load_shared<BYTES>(s.words + i * WORDS, from + i * THREADS * BYTES);
    }
    if constexpr (sizeof(T) == sizeof(V)) {
#pragma unroll
        for (int i = 0; i < (int)(sizeof(x.words) / 4); i++) x.words[i] = s.words[i];
    } else {
        float values[N];
        unpack<N>(s, 0, values);
        pack<N>(values, 0, x);
    }
}

/* Reads the input from memory: its number for the row of each unit, or the element if a unit is one element. Units beyond the result get
 * its first number, so that no load waits for another. */
template <typename T, int UNIT, int N, typename V>
static __device__ __forceinline__ void load_input(const ChainRun &run, int k, const Place &first, Stored<N, V> &x)
{
    const char *in = run.in[k];
    uint32_t    word[N / UNIT];
#pragma unroll
    for (int u = 0; u < N / UNIT; u++) {
        uint32_t at = row_offset(run, k, first.row + u * run.rows_apart) + (UNIT == 1 ? first.col * run.col_step[k] : 0);
        word[u] = first.unit + u * run.apart < run.units ? at : 0;
    }
#pragma unroll
    for (int u = 0; u < N / UNIT; u++) {
        if constexpr (std::is_same<T, Mixed>::value)
            word[u] = __float_as_uint(any_get(in, run.dtype[k], word[u]));
        else if constexpr (sizeof(T) == 2)
            word[u] = ((const unsigned short *)in)[word[u]];
        else
            word[u] = ((const uint32_t *)in)[word[u]];
    }
#pragma unroll
    for (int u = 0; u < N / UNIT; u++) fill(x, u * UNIT, UNIT, sizeof(V) == 2 ? word[u] * 0x10001u : word[u]);
}

/* Reads an operand that isn't in registers: from its column, from memory, or as zeros. */
template <typename T, int UNIT, int N, typename V>
static __device__ __forceinline__ void load(const ChainRun &run, uint32_t columns, const Source &from, const Place &first, Stored<N, V> &x)
{
    bool one = from.kind & SOURCE_ONE;
    int  kind = from.kind & ~SOURCE_ONE;
    if (kind >= SOURCE_F32) {
        if constexpr (!std::is_same<T, Mixed>::value)
            load_column<UNIT, N, T>(columns, from.at, one, x);
        else if (kind == SOURCE_BF16)
            load_column<UNIT, N, __nv_bfloat16>(columns, from.at, one, x);
        else if (kind == SOURCE_F32)
            load_column<UNIT, N, float>(columns, from.at, one, x);
        else
            load_column<UNIT, N, __half>(columns, from.at, one, x);
    } else if (kind == SOURCE_INPUT) {
        load_input<T, UNIT, N>(run, from.at, first, x);
    } else {
        fill(x, 0, N, 0);
    }
}

/* Stores the step's result in its column if KEPT, and in its output if WRITTEN. */
template <int UNIT, int N, typename T>
static __device__ __forceinline__ void put(const ChainRun &run, uint32_t columns, uint32_t step, int flags, const Place &first,
                                           const Stored<N, T> &s)
{
    enum { BYTES = Chunk<UNIT, T>::BYTES, EACH_UNIT = Chunk<UNIT, T>::EACH_UNIT, CHUNKS = N / Chunk<UNIT, T>::N, WORDS = (BYTES + 3) / 4 };
    if (flags & KEPT) {
        uint32_t slot;
        load_shared<4>(&slot, step + offsetof(RunStep, slot));
        uint32_t to = column<BYTES>(columns, slot);
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) store_shared<BYTES>(to + i * THREADS * BYTES, s.words + i * WORDS);
    }
    if (flags & WRITTEN) {
        union {
            uint32_t words[2];
            char    *out;
        } to;
        load_shared<8>(to.words, step + offsetof(RunStep, out));
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            uint32_t unit = first.unit + i / EACH_UNIT * run.apart;
            if (unit < run.units) store_global<BYTES>(to.out + ((uint64_t)unit * EACH_UNIT + i % EACH_UNIT) * BYTES, s.words + i * WORDS);
        }
    }
}

/* Rounds y to T, and stores it as put does. */
template <int UNIT, typename T, int N>
static __device__ __forceinline__ void finish(const ChainRun &run, uint32_t columns, uint32_t step, int flags, const Place &first,
                                              Stored<N, float> &y)
{
    Stored<N, T> s;
    float        values[N];
    unpack<N>(y, 0, values);
    pack<N>(values, 0, s);
    put<UNIT>(run, columns, step, flags, first, s);
    unpack<N>(s, 0, values);
    pack<N>(values, 0, y);
}

/* ---- steps ---- */

/* How many elements a step converts to floats at a time. */
template <int N> struct Piece {
    enum { SIZE = N < 8 ? N : 8 };
};

template <int N, typename V, typename F>
static __device__ __forceinline__ void apply_three(Stored<N, V> &y, const Stored<N, V> &b, const Stored<N, V> &c, F f)
{
    enum { SIZE = Piece<N>::SIZE };
#pragma unroll
    for (int begin = 0; begin < N; begin += SIZE) {
        float u[SIZE], v[SIZE], w[SIZE];
        unpack<SIZE>(y, begin, u);
        unpack<SIZE>(b, begin, v);
        unpack<SIZE>(c, begin, w);
#pragma unroll
        for (int i = 0; i < SIZE; i++) u[i] = f(u[i], v[i], w[i]);
        pack<SIZE>(u, begin, y);
    }
}

template <int N, typename V, typename F> static __device__ __forceinline__ void apply_two(Stored<N, V> &y, const Stored<N, V> &b, F f)
{
    enum { SIZE = Piece<N>::SIZE };
#pragma unroll
    for (int begin = 0; begin < N; begin += SIZE) {
        float u[SIZE], v[SIZE];
        unpack<SIZE>(y, begin, u);
        unpack<SIZE>(b, begin, v);
        each_of<V>(u, v, f);
        pack<SIZE>(u, begin, y);
    }
}

/* Pairs of bf16 are computed by P, both elements in one go; other values by F, a function of two or three numbers. */
template <int N, typename V, typename P, typename F>
static __device__ __forceinline__ void apply_pairs(Stored<N, V> &y, const Stored<N, V> &b, const Stored<N, V> &c, P pair, F f)
{
    if constexpr (sizeof(V) == 2) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) y.words[i] = pair(y.words[i], b.words[i], c.words[i]);
    } else if constexpr (std::is_invocable<F, float, float>::value) {
        apply_two(y, b, f);
    } else {
        apply_three(y, b, c, f);
    }
}

/* y times the number. Pairs of bf16 are multiplied in one go if bf16 holds the number exactly. */
template <int N, typename V> static __device__ __forceinline__ void apply_scale(Stored<N, V> &y, float number)
{
    uint32_t bits = __float_as_uint(number);
    if (sizeof(V) == 2 && !(bits & 0xFFFF)) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) y.words[i] = pair_mul(y.words[i], (bits >> 16) * 0x10001u);
    } else {
        apply_two(y, y, Scale{number});
    }
}

/* y / b. bf16: 8 elements at a time by reciprocals, or by divisions if a quotient is too small, or a divisor too small or large. */
template <int N, typename V> static __device__ __forceinline__ void apply_div(Stored<N, V> &y, const Stored<N, V> &b)
{
    if constexpr (sizeof(V) == 2 && N >= 8) {
#pragma unroll
        for (int begin = 0; begin < N; begin += 8) {
            float        u[8], v[8];
            Stored<8, V> q;
            PairRange    range;
            unpack<8>(y, begin, u);
            unpack<8>(b, begin, v);
#pragma unroll
            for (int i = 0; i < 8; i++) u[i] *= reciprocal(v[i]);
            pack<8>(u, 0, q);
#pragma unroll
            for (int i = 0; i < 4; i++) range.see(q.words[i], b.words[begin / 2 + i]);
            if (range.far()) {
                unpack<8>(y, begin, u);
#pragma unroll
                for (int i = 0; i < 8; i++) u[i] = u[i] / v[i];
                pack<8>(u, 0, q);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) y.words[begin / 2 + i] = q.words[i];
        }
    } else {
        apply_three(y, b, b, Div());
    }
}

/* Loads the step's third operand. step: the step's address in shared memory. */
template <typename T, int UNIT, int N, typename V>
static __device__ __forceinline__ void load_third(const ChainRun &run, uint32_t columns, uint32_t step, const Place &first, Stored<N, V> &c)
{
    union {
        uint32_t words[2];
        Source   source;
    } from;
    load_shared<8>(from.words, step + offsetof(RunStep, from[2]));
    load<T, UNIT>(run, columns, from.source, first, c);
}

#define STEP(code, apply, ...) \
    case CHAIN_##code: \
        apply(y, b, __VA_ARGS__); \
        break;
#define THREE(code, apply, ...) \
    case CHAIN_##code: \
        load_third<T, UNIT>(run, columns, step, first, c); \
        apply(y, b, c, __VA_ARGS__); \
        break;

/* y = the step's function of y, b and, if the step has one, its third operand. A cast only rounds. */
template <typename T, int UNIT, int N, typename V>
static __device__ __forceinline__ void apply_step(const ChainRun &run, uint32_t columns, uint32_t step, int code, float number,
                                                  const Place &first, Stored<N, V> &y, const Stored<N, V> &b)
{
    Stored<N, V> c;
    bool         flag = number != 0;
    switch (code) {
        STEP(ADD, apply_pairs, b, PairAdd(), Add())
        STEP(SUB, apply_pairs, b, PairSub(), Sub())
        STEP(MUL, apply_pairs, b, PairMul(), Mul())
    case CHAIN_DIV:
        apply_div(y, b);
        break;
        STEP(MINIMUM, apply_pairs, b, PairMinimum(), Minimum())
        STEP(MAXIMUM, apply_pairs, b, PairMaximum(), Maximum())
        THREE(MAXIMUM_BWD, apply_three, MaximumBwd{flag})
        STEP(GE, apply_three, b, Ge())
        STEP(GT, apply_three, b, Gt())
        STEP(EQ, apply_three, b, Eq())
        THREE(WHERE, apply_three, Where())
        STEP(EXP, apply_two, Exp())
        STEP(LOG, apply_two, Log())
        STEP(SQRT, apply_two, Sqrt())
        STEP(TANH, apply_two, Tanh())
        STEP(SIGMOID, apply_two, Sigmoid())
        STEP(SIGMOID_BWD, apply_two, SigmoidBwd())
        STEP(SILU, apply_two, Silu())
        STEP(SILU_BWD, apply_two, SiluBwd())
        STEP(LOG_SIGMOID, apply_two, LogSigmoid())
        STEP(LOG_SIGMOID_BWD, apply_two, LogSigmoidBwd())
    case CHAIN_SCALE:
        apply_scale(y, number);
        break;
        STEP(SOFTCAP, apply_two, Softcap{number})
        STEP(SOFTCAP_BWD, apply_two, SoftcapBwd{number})
    case CHAIN_GELU:
        if (flag)
            apply_two(y, b, GeluTanh());
        else
            apply_two(y, b, GeluErf());
        break;
    case CHAIN_GELU_BWD:
        if (flag)
            apply_two(y, b, GeluTanhBwd());
        else
            apply_two(y, b, GeluErfBwd());
        break;
        STEP(RELU, apply_pairs, b, PairRelu{flag}, Relu{flag})
        STEP(RELU_BWD, apply_pairs, b, PairReluBwd{flag}, ReluBwd{flag})
    }
}

/* step: address of the first step in shared memory. */
template <typename T, int UNIT, int N>
static __device__ __forceinline__ void run_steps(const ChainRun &run, uint32_t step, uint32_t columns, const Place &first)
{
    Values<N, T> y;
    union {
        uint32_t words[4];
        struct {
            int   flags, code;
            float number;
            int   dtype;
        };
    } head;
#pragma unroll 1
    do {
        union {
            uint32_t words[4];
            Source   operand[2];
        } from;
        Values<N, T> b; /* stays undefined if the step doesn't read it, so that no registers are moved */
        load_shared<16>(head.words, step);
        load_shared<16>(from.words, step + offsetof(RunStep, from));
        if (head.flags & SECOND_COLUMN) {
            load_column<UNIT, N, Column<T>>(columns, from.operand[1].at, false, b);
        } else if (head.flags & SECOND_LATEST) {
            asm volatile(""); /* keeps the compiler from moving registers in all steps */
            b = y;
        } else if (head.flags & SECOND_LOAD) {
            load<T, UNIT>(run, columns, from.operand[1], first, b);
        }
        if (head.flags & FIRST_COLUMN)
            load_column<UNIT, N, Column<T>>(columns, from.operand[0].at, false, y);
        else if (head.flags & FIRST_LOAD)
            load<T, UNIT>(run, columns, from.operand[0], first, y);
        apply_step<T, UNIT>(run, columns, step, head.code, head.number, first, y, b);
        if (!std::is_same<T, Mixed>::value || head.dtype == DT_F32) {
            if (head.flags & (KEPT | WRITTEN)) put<UNIT>(run, columns, step, head.flags, first, y);
        } else if constexpr (std::is_same<T, Mixed>::value) {
            if (head.dtype == DT_BF16)
                finish<UNIT, __nv_bfloat16>(run, columns, step, head.flags, first, y);
            else
                finish<UNIT, __half>(run, columns, step, head.flags, first, y);
        }
        step += sizeof(RunStep);
    } while (!(head.flags & LAST));
}

/* Copies the steps to shared memory, for each stage. Returns the address of the thread's chunk of 16 bytes at byte 0 of the columns. */
static __device__ __forceinline__ uint32_t share_steps(const ChainRun &run)
{
    RunStep *steps = (RunStep *)shared_memory;
    for (int i = (int)threadIdx.x; i < run.count * STAGES; i += THREADS) {
        int     stage = i / run.count;
        RunStep step = run.steps[i - stage * run.count];
#pragma unroll
        for (int k = 0; k < CHAIN_OPERANDS; k++)
            if (step.staged >> k & 1) step.from[k].at += stage * run.stage_bytes;
        steps[i] = step;
    }
    __syncthreads();
    uint32_t columns = shared_address(steps + run.count * STAGES) + threadIdx.x * 16;
    asm volatile("" : "+r"(columns)); /* keeps the compiler from computing `columns` again in all steps */
    return columns;
}

/* ---- inputs ahead of their steps ---- */

/* Starts to copy a unit of an input, from element `at` on, to the columns at address `to`. Copies nothing unless `there`. */
template <typename T, int UNIT>
static __device__ __forceinline__ void copy_unit(const char *from, int bytes, uint32_t to, uint32_t at, bool there)
{
    if (!std::is_same<T, Mixed>::value || bytes * UNIT == 16)
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16; }" ::"r"(column<16>(to, 0)),
                     "l"(from + (uint64_t)at * (16 / UNIT)), "r"((uint32_t)there));
    else
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p cp.async.ca.shared.global [%0], [%1], 8; }" ::"r"(column<8>(to, 0)),
                     "l"(from + (uint64_t)at * (8 / UNIT)), "r"((uint32_t)there));
}

/* Starts the copies of an iteration's inputs. columns: address of the stage's columns. */
template <typename T, int UNIT, int UNITS>
static __device__ __forceinline__ void copy_ahead(const ChainRun &run, const Place &first, uint32_t columns)
{
#pragma unroll 1
    for (int i = 0; i < run.num_staged; i++) {
        const RunCopy &copy = run.copies[i];
        const int      bytes = std::is_same<T, Mixed>::value ? copy.bytes : 16 / UNIT;
        uint32_t       to = columns + copy.at;
        if (copy.dense) {
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                uint32_t unit = first.unit + u * run.apart;
                copy_unit<T, UNIT>(copy.from, bytes, to + u * THREADS * UNIT * bytes, unit * UNIT, unit < run.units);
            }
        } else {
#pragma unroll 1
            for (int u = 0; u < UNITS; u++) {
                uint32_t at = row_offset(run, copy.k, first.row + u * run.rows_apart) + first.col * UNIT;
                bool     there = first.unit + u * run.apart < run.units;
                copy_unit<T, UNIT>(copy.from, bytes, to + u * THREADS * UNIT * bytes, at, there);
            }
        }
    }
    copy_commit();
}

/* Blocks that a multiprocessor shall have room for, by the bytes of a thread's values. Chains of fp32 are up to 10 % faster with 6. */
static constexpr int blocks_of(int bytes, bool fp32)
{
    return bytes <= 32 && !fp32 ? 8 : 6;
}

template <typename T, int UNIT, int UNITS>
static __global__ void __launch_bounds__(THREADS, blocks_of(sizeof(Values<UNIT * UNITS, T>), std::is_same<T, float>::value))
    chain_units(const __grid_constant__ ChainRun run)
{
    const uint32_t columns = share_steps(run), steps = shared_address(shared_memory), stage_steps = run.count * (uint32_t)sizeof(RunStep);
    const uint32_t rows = UNITS * run.rows_apart, units = UNITS * run.apart, thread = blockIdx.x * THREADS + threadIdx.x;
    if (thread >= run.apart) return;
    Place    at = {divided(thread, run.row), 0, thread};
    uint32_t write = 0, read = 0, begun = 0;
    at.col = thread - at.row * run.row.by;
    for (int i = run.num_staged; i < run.num_copies; i++)
        copy_unit<T, UNIT>(run.copies[i].from, run.copies[i].bytes, columns + run.copies[i].at, at.col * UNIT, true);
    do {
        copy_ahead<T, UNIT, UNITS>(run, at, columns + write * run.stage_bytes);
        write = write + 1 < STAGES ? write + 1 : 0;
        if (begun == STAGES - 1) {
            Place before = {at.row - (STAGES - 1) * rows, at.col, at.unit - (STAGES - 1) * units};
            copy_wait<STAGES - 1>();
            run_steps<T, UNIT, UNITS * UNIT>(run, steps + read * stage_steps, columns, before);
            read = read + 1 < STAGES ? read + 1 : 0;
        } else {
            begun++;
        }
        at.row += rows;
        at.unit += units;
    } while (at.unit - begun * units < run.units);
}

/* Elements from `done` on, one at a time, for sizes and addresses that have no whole units. */
static __global__ void __launch_bounds__(THREADS) chain_elements(const __grid_constant__ ChainRun run, int64_t done)
{
    uint32_t columns = share_steps(run), steps = shared_address(shared_memory);
    for (int64_t i = done + (int64_t)blockIdx.x * THREADS + threadIdx.x; i < run.units; i += (int64_t)gridDim.x * THREADS) {
        uint32_t row = divided((uint32_t)i, run.row);
        run_steps<Mixed, 1, 1>(run, steps, columns, {row, (uint32_t)i - row * run.row.by, (uint32_t)i});
    }
}
