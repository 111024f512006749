/* chain on CUDA: an interpreter. A thread takes 8 or 16 elements through all steps, with the latest result in registers as fp32. Results
 * that are read later than by the next step are kept in the thread's own column of shared memory. Inputs are copied to that column one
 * iteration ahead, so that memory is busy while steps are computed; inputs with one number for a whole row are read when a step wants
 * them. All threads of a block run the same step, so its code is read once. The host decides where each operand comes from, so that a
 * step takes few instructions besides its arithmetic: at the speed of a copy there is time for about 7 per byte of an element. */
#include "device/cuda/vec_f16.cuh"
#include "ops/mma.cuh"

#include "ops/elementwise/broadcast.h"
#include "ops/elementwise/chain.h"
#include "ops/elementwise/functions.cuh"

/* STAGES: iterations whose inputs are in shared memory at a time, the current one included. UNITS: units that a thread takes at a time.
 * SMALL: below so many elements, threads take 8 elements rather than 16, since a GPU isn't full and steps end sooner. */
enum { THREADS = 128, STAGES = 2, UNITS = 2, SMALL = 1 << 20 };

/* Blocks that a multiprocessor shall have room for, by their registers. */
static constexpr int blocks_of(int unit)
{
    return unit == 8 ? 6 : 8;
}

/* Where an operand comes from. UNREAD: the step has no such operand. LATEST: the previous step's result, in registers. ZERO: an absent
 * input. INPUT: memory. F32, BF16, F16: the thread's column of shared memory, in this dtype. */
typedef enum SourceKind { SOURCE_UNREAD, SOURCE_LATEST, SOURCE_ZERO, SOURCE_INPUT, SOURCE_F32, SOURCE_BF16, SOURCE_F16 } SourceKind;

typedef struct Source {
    int kind;   /* SourceKind */
    int staged; /* in shared memory: whether it is an input of the current stage */
    int at;     /* SOURCE_INPUT: index of the input; in shared memory: byte where the columns begin, without the stage's offset */
} Source;

typedef struct RunStep {
    int    code, dtype; /* ChainCode; DType of the result */
    Source from[CHAIN_OPERANDS];
    float  number;
    int    slot; /* byte of shared memory where the columns of the kept result begin; -1: it isn't kept */
    char  *out;  /* NULL: the result isn't written */
} RunStep;

/* An input that is copied to shared memory. */
typedef struct RunCopy {
    const char *from;
    int         k, bytes, at; /* index of the input; bytes of an element; as Source.at */
    bool        dense;        /* the input has the result's dims */
} RunCopy;

/* n / by for any n, by a product: by <= 2^shift < 2 by. */
typedef struct Divisor {
    uint32_t by, factor, shift;
} Divisor;

/* A chain as the kernel runs it. A unit is UNIT adjacent elements of a row; a tile is as many units as a block takes at a time. */
typedef struct ChainRun {
    RunStep     steps[CHAIN_MAX_STEPS];
    RunCopy     copies[CHAIN_MAX_IN];
    const char *in[CHAIN_MAX_IN];
    signed char dtype[CHAIN_MAX_IN];
    Divisor     dim[TENSOR_MAX_DIMS], row;           /* the result's dims except the last; units in a row */
    uint32_t    step[CHAIN_MAX_IN][TENSOR_MAX_DIMS]; /* as Broadcast.step */
    int         ndim, count, num_copies, stages, stage_bytes;
    uint32_t    units, tiles;
} ChainRun;

/* ---- places of elements ---- */

static __device__ __forceinline__ uint32_t divided(uint32_t n, const Divisor &d)
{
    uint32_t high = __umulhi(n, d.factor);
    return d.shift ? (high + (n - high) / 2) >> (d.shift - 1) : n;
}

/* Element of input k that is read for the first element of a unit. */
template <int UNIT> static __device__ __forceinline__ uint32_t element_of(const ChainRun &run, int k, uint32_t unit)
{
    uint32_t row = divided(unit, run.row), at = (unit - row * run.row.by) * UNIT * run.step[k][run.ndim - 1];
#pragma unroll 1
    for (int d = run.ndim - 2; d > 0; d--) {
        uint32_t above = divided(row, run.dim[d]);
        at += (row - above * run.dim[d].by) * run.step[k][d];
        row = above;
    }
    return at + row * run.step[k][0];
}

/* ---- a thread's column of shared memory: chunks of up to 16 bytes, those of all threads side by side ---- */

template <int UNIT, typename T> struct Chunk {
    enum { N = UNIT * sizeof(T) > 16 ? 16 / sizeof(T) : UNIT, BYTES = N * sizeof(T) };
};

extern __shared__ uint4 shared_columns[];

template <int BYTES> static __device__ __forceinline__ char *column(int at, int chunk)
{
    return (char *)shared_columns + at + (chunk * THREADS + (int)threadIdx.x) * BYTES;
}

template <int BYTES> static __device__ __forceinline__ void copy_bytes(void *to, const void *from)
{
    if constexpr (BYTES == 16)
        *(uint4 *)to = *(const uint4 *)from;
    else if constexpr (BYTES == 8)
        *(uint2 *)to = *(const uint2 *)from;
    else if constexpr (BYTES == 4)
        *(uint32_t *)to = *(const uint32_t *)from;
    else
        *(uint16_t *)to = *(const uint16_t *)from;
}

/* ---- elements ---- */

template <int N> struct Values {
    float v[N];
};

/* N elements as they are stored, in whole words. */
template <int N, typename T> union Stored {
    uint32_t                         words[(N * sizeof(T) + 3) / 4];
    __device__ __forceinline__       Stored() : words() {}
    __device__ __forceinline__ char *chunk(int i, int bytes)
    {
        return (char *)words + i * bytes;
    }
};

template <int N> static __device__ __forceinline__ void unpack(const Stored<N, float> &s, Values<N> &x)
{
#pragma unroll
    for (int i = 0; i < N; i++) x.v[i] = __uint_as_float(s.words[i]);
}
template <int N> static __device__ __forceinline__ void unpack(const Stored<N, __nv_bfloat16> &s, Values<N> &x)
{
#pragma unroll
    for (int i = 0; i < N; i++) x.v[i] = __uint_as_float(i % 2 ? s.words[i / 2] & 0xFFFF0000u : s.words[i / 2] << 16);
}
template <int N> static __device__ __forceinline__ void unpack(const Stored<N, __half> &s, Values<N> &x)
{
#pragma unroll
    for (int i = 0; i < N; i++) x.v[i] = __half2float(__ushort_as_half((unsigned short)(s.words[i / 2] >> i % 2 * 16)));
}

template <int N, typename T> static __device__ __forceinline__ void pack(const Values<N> &x, Stored<N, T> &s)
{
#pragma unroll
    for (int i = 0; i < (N + 1) / 2; i++) s.words[i] = pair_of<T>(x.v[2 * i], 2 * i + 1 < N ? x.v[2 * i + 1] : 0.0f);
}
template <int N> static __device__ __forceinline__ void pack(const Values<N> &x, Stored<N, float> &s)
{
#pragma unroll
    for (int i = 0; i < N; i++) s.words[i] = __float_as_uint(x.v[i]);
}

template <int UNIT, int N, typename T> static __device__ __forceinline__ void load_column(int at, Values<N> &x)
{
    enum { BYTES = Chunk<UNIT, T>::BYTES };
    Stored<N, T> s;
#pragma unroll
    for (int i = 0; i < N / Chunk<UNIT, T>::N; i++) copy_bytes<BYTES>(s.chunk(i, BYTES), column<BYTES>(at, i));
    unpack(s, x);
}

/* Reads the input from memory: its number for the row of each unit, or the element if a unit is one element. */
template <int UNIT, int N> static __device__ __forceinline__ void load_input(const ChainRun &run, int k, uint32_t first, Values<N> &x)
{
#pragma unroll
    for (int u = 0; u < N / UNIT; u++) {
        uint32_t unit = first + u * THREADS;
        float    one = unit < run.units ? any_get(run.in[k], run.dtype[k], element_of<UNIT>(run, k, unit)) : 0.0f;
#pragma unroll
        for (int i = 0; i < UNIT; i++) x.v[u * UNIT + i] = one;
    }
}

template <int UNIT, int N>
static __device__ __forceinline__ void load(const ChainRun &run, const Source &from, int stage, uint32_t first, Values<N> &x)
{
    if (from.kind <= SOURCE_LATEST) return;
    int at = from.at + (from.staged ? stage * run.stage_bytes : 0);
    switch (from.kind) {
    case SOURCE_F32:
        load_column<UNIT, N, float>(at, x);
        break;
    case SOURCE_BF16:
        load_column<UNIT, N, __nv_bfloat16>(at, x);
        break;
    case SOURCE_F16:
        load_column<UNIT, N, __half>(at, x);
        break;
    case SOURCE_INPUT:
        load_input<UNIT, N>(run, from.at, first, x);
        break;
    case SOURCE_ZERO:
#pragma unroll
        for (int i = 0; i < N; i++) x.v[i] = 0;
        break;
    }
}

/* Rounds y to T; keeps and writes it as the step says. */
template <int UNIT, int N, typename T>
static __device__ __forceinline__ void finish(const ChainRun &run, const RunStep &step, uint32_t first, Values<N> &y)
{
    enum { BYTES = Chunk<UNIT, T>::BYTES, EACH_UNIT = UNIT / Chunk<UNIT, T>::N };
    Stored<N, T> s;
    pack(y, s);
    if (step.slot >= 0) {
#pragma unroll
        for (int i = 0; i < N / Chunk<UNIT, T>::N; i++) copy_bytes<BYTES>(column<BYTES>(step.slot, i), s.chunk(i, BYTES));
    }
    if (step.out) {
#pragma unroll
        for (int i = 0; i < N / Chunk<UNIT, T>::N; i++) {
            uint32_t unit = first + i / EACH_UNIT * THREADS;
            if (unit < run.units) copy_bytes<BYTES>(step.out + ((int64_t)unit * EACH_UNIT + i % EACH_UNIT) * BYTES, s.chunk(i, BYTES));
        }
    }
    unpack(s, y);
}

/* ---- steps ---- */

template <int N, typename F> static __device__ __forceinline__ void apply_two(Values<N> &y, const Values<N> &b, F f)
{
#pragma unroll
    for (int i = 0; i < N; i++) y.v[i] = f(y.v[i], b.v[i]);
}

template <int N, typename F> static __device__ __forceinline__ void apply_three(Values<N> &y, const Values<N> &b, const Values<N> &c, F f)
{
#pragma unroll
    for (int i = 0; i < N; i++) y.v[i] = f(y.v[i], b.v[i], c.v[i]);
}

/* Eight elements at a time, which divide without branches unless one of them needs it. */
template <int N, typename F> static __device__ __forceinline__ void apply_sigmoid(Values<N> &y, const Values<N> &b, F)
{
    enum { PART = N < 8 ? N : 8 };
#pragma unroll
    for (int begin = 0; begin < N; begin += PART) {
        float s[PART], least = 0;
#pragma unroll
        for (int i = 0; i < PART; i++) {
            float x = F::argument(y.v[begin + i], b.v[begin + i]);
            least = fminf(least, x);
            s[i] = sigmoid_near(x);
        }
        if (least < SIGMOID_LEAST) {
#pragma unroll
            for (int i = 0; i < PART; i++) s[i] = sigmoid_of(F::argument(y.v[begin + i], b.v[begin + i]));
        }
#pragma unroll
        for (int i = 0; i < PART; i++) y.v[begin + i] = F::of(s[i], y.v[begin + i], b.v[begin + i]);
    }
}

#define STEP(code, apply, ...) \
    case CHAIN_##code: \
        apply(y, b, __VA_ARGS__); \
        break;
#define THREE(code, ...) \
    case CHAIN_##code: \
        load<UNIT, N>(run, step.from[2], stage, first, c); \
        apply_three(y, b, c, __VA_ARGS__); \
        break;

/* y = the step's function of y, b and, if it reads a third operand, that one. A cast only rounds. */
template <int UNIT, int N>
static __device__ __forceinline__ void apply_step(const ChainRun &run, const RunStep &step, int stage, uint32_t first, Values<N> &y,
                                                  const Values<N> &b)
{
    Values<N> c;
    float     number = step.number;
    bool      flag = number != 0;
    switch (step.code) {
        STEP(ADD, apply_three, b, Add())
        STEP(SUB, apply_three, b, Sub())
        STEP(MUL, apply_three, b, Mul())
        STEP(DIV, apply_three, b, Div())
        STEP(MINIMUM, apply_three, b, Minimum())
        STEP(MAXIMUM, apply_three, b, Maximum())
        THREE(MAXIMUM_BWD, MaximumBwd{flag})
        STEP(GE, apply_three, b, Ge())
        STEP(GT, apply_three, b, Gt())
        STEP(EQ, apply_three, b, Eq())
        THREE(WHERE, Where())
        STEP(EXP, apply_two, Exp())
        STEP(LOG, apply_two, Log())
        STEP(SQRT, apply_two, Sqrt())
        STEP(TANH, apply_two, Tanh())
        STEP(SIGMOID, apply_sigmoid, Sigmoid())
        STEP(SIGMOID_BWD, apply_two, SigmoidBwd())
        STEP(SILU, apply_sigmoid, Silu())
        STEP(SILU_BWD, apply_sigmoid, SiluBwd())
        STEP(LOG_SIGMOID, apply_two, LogSigmoid())
        STEP(LOG_SIGMOID_BWD, apply_sigmoid, LogSigmoidBwd())
        STEP(SCALE, apply_two, Scale{number})
        STEP(SOFTCAP, apply_two, Softcap{number})
        STEP(SOFTCAP_BWD, apply_two, SoftcapBwd{number})
    case CHAIN_GELU:
        if (flag)
            apply_sigmoid(y, b, GeluTanh());
        else
            apply_two(y, b, GeluErf());
        break;
    case CHAIN_GELU_BWD:
        if (flag)
            apply_sigmoid(y, b, GeluTanhBwd());
        else
            apply_two(y, b, GeluErfBwd());
        break;
        STEP(RELU, apply_two, Relu{flag})
        STEP(RELU_BWD, apply_two, ReluBwd{flag})
    }
}

/* first: the thread's first unit; the others follow at distances of THREADS. */
template <int UNIT, int N> static __device__ __forceinline__ void run_steps(const ChainRun &run, uint32_t first, int stage)
{
    Values<N> y = {};
#pragma unroll 1
    for (int i = 0; i < run.count; i++) {
        const RunStep &step = run.steps[i];
        Values<N>      b; /* stays undefined if the step doesn't read it, so that no registers are moved */
        if (step.from[1].kind == SOURCE_LATEST) {
            asm volatile(""); /* keeps the compiler from moving registers in all steps */
            b = y;
        } else {
            load<UNIT, N>(run, step.from[1], stage, first, b);
        }
        load<UNIT, N>(run, step.from[0], stage, first, y);
        apply_step<UNIT, N>(run, step, stage, first, y, b);
        if (step.dtype == DT_BF16)
            finish<UNIT, N, __nv_bfloat16>(run, step, first, y);
        else if (step.dtype == DT_F32)
            finish<UNIT, N, float>(run, step, first, y);
        else
            finish<UNIT, N, __half>(run, step, first, y);
    }
}

/* ---- inputs ahead of their steps ---- */

template <int BYTES> static __device__ __forceinline__ void copy_chunk(int to, const char *from, bool dense)
{
    uint32_t address = shared_address(shared_columns) + to;
    if (BYTES == 16 && dense)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(BYTES));
}

/* Starts the copies of a tile's inputs to a stage. first: as in run_steps. */
template <int UNIT, int N> static __device__ __forceinline__ void copy_ahead(const ChainRun &run, uint32_t first, int stage)
{
    for (int i = 0; i < run.num_copies; i++) {
        const RunCopy &copy = run.copies[i];
        int            to = copy.at + stage * run.stage_bytes;
#pragma unroll
        for (int u = 0; u < N / UNIT; u++) {
            uint32_t unit = first + u * THREADS;
            if (unit >= run.units) continue;
            uint32_t    at = copy.dense ? unit * UNIT : element_of<UNIT>(run, copy.k, unit);
            const char *from = copy.from + (uint64_t)at * copy.bytes;
            int         place = u * THREADS + (int)threadIdx.x;
            if (copy.bytes * UNIT == 16)
                copy_chunk<16>(to + place * 16, from, copy.dense);
            else
                copy_chunk<8>(to + place * 8, from, copy.dense);
        }
    }
    copy_commit();
}

template <int UNIT> static __global__ void __launch_bounds__(THREADS, blocks_of(UNIT)) chain_units(const __grid_constant__ ChainRun run)
{
    constexpr int      EACH = UNITS * UNIT;
    constexpr uint32_t TILE = THREADS * UNITS;
    uint32_t           ahead = run.stages - 1;
    int                stage = 0;
    for (uint32_t s = 0; s < ahead; s++) copy_ahead<UNIT, EACH>(run, (blockIdx.x + s * gridDim.x) * TILE + threadIdx.x, (int)s);
    for (uint32_t tile = blockIdx.x; tile < run.tiles; tile += gridDim.x) {
        int into = stage ? stage - 1 : (int)ahead;
        copy_ahead<UNIT, EACH>(run, (tile + ahead * gridDim.x) * TILE + threadIdx.x, into);
        if (ahead)
            copy_wait<STAGES - 1>();
        else
            copy_wait<0>();
        asm volatile("" ::: "memory"); /* keeps the compiler from reading the copied data earlier */
        run_steps<UNIT, EACH>(run, tile * TILE + threadIdx.x, stage);
        stage = stage + 1 < run.stages ? stage + 1 : 0;
    }
}

/* Elements from `done` on, one at a time, for sizes and addresses that have no whole units. */
static __global__ void __launch_bounds__(THREADS) chain_elements(const __grid_constant__ ChainRun run, int64_t done)
{
    for (int64_t i = done + (int64_t)blockIdx.x * THREADS + threadIdx.x; i < run.units; i += (int64_t)gridDim.x * THREADS)
        run_steps<1, 1>(run, (uint32_t)i, 0);
}

/* ---- launching ---- */

static const int operands_of[CHAIN_COUNT] = {
#define CHAIN(op, operands, flops) operands,
#include "ops/elementwise/chain.def"
#undef CHAIN
};

static int bytes_of(int dtype)
{
    return dtype == DT_F32 ? 4 : 2;
}

static SourceKind column_kind(int dtype)
{
    return dtype == DT_F32 ? SOURCE_F32 : dtype == DT_BF16 ? SOURCE_BF16 : SOURCE_F16;
}

static Divisor divisor(int64_t by)
{
    Divisor d = {(uint32_t)by, 0, 0};
    while ((int64_t)1 << d.shift < by) d.shift++;
    d.factor = (uint32_t)(((uint64_t)1 << 32) * (((uint64_t)1 << d.shift) - (uint64_t)by) / (uint64_t)by + 1);
    return d;
}

/* Whether the step takes operand k from registers; a third operand never is. */
static bool is_latest(int i, int k, int operand)
{
    return i > 0 && k < 2 && operand == CHAIN_RESULT + i - 1;
}

/* a + b and a b have the same bits either way: the previous result comes first, because it needn't be moved then. */
static void order_operands(int i, ChainStep *step)
{
    int  second = step->operand[1];
    bool either = step->code == CHAIN_ADD || step->code == CHAIN_MUL;
    if (!either || !is_latest(i, 1, second)) return;
    step->operand[1] = step->operand[0];
    step->operand[0] = second;
}

/* Assigns columns of shared memory to results that are read later than by the next step, from byte `begin` on. A column is reused after
 * its last reader. Returns where the columns end. */
static int find_slots(ChainRun *run, const ChainStep *steps, int begin, int each)
{
    int last[CHAIN_MAX_STEPS] = {}, free_from[CHAIN_MAX_STEPS] = {}, slots = 0, bytes = 2;
    for (int i = 0; i < run->count; i++)
        for (int k = 0; k < CHAIN_OPERANDS; k++) {
            int from = steps[i].operand[k] - CHAIN_RESULT;
            if (from < 0 || is_latest(i, k, steps[i].operand[k])) continue;
            last[from] = i;
            if (bytes_of(steps[from].dtype) > bytes) bytes = 4;
        }
    for (int i = 0; i < run->count; i++) {
        int slot = 0;
        run->steps[i].slot = -1;
        if (!last[i]) continue;
        while (free_from[slot] > i) slot++;
        free_from[slot] = last[i] + 1;
        run->steps[i].slot = begin + slot * THREADS * each * bytes;
        if (slot >= slots) slots = slot + 1;
    }
    return begin + slots * THREADS * each * bytes;
}

/* Decides which inputs are copied ahead: those whose elements lie side by side, if a unit has several. Returns the bytes of a stage. */
static int find_copies(ChainRun *run, const Broadcast *plan, int unit)
{
    int at = 0, last = plan->ndim - 1;
    for (int k = 0; k < CHAIN_MAX_IN; k++) {
        if (!run->in[k] || unit == 1 || !plan->step[k][last]) continue;
        RunCopy *copy = &run->copies[run->num_copies++];
        int64_t  dense = 1;
        *copy = {run->in[k], k, bytes_of(run->dtype[k]), at, true};
        for (int d = last; d >= 0; d--) {
            copy->dense = copy->dense && plan->step[k][d] == dense;
            dense *= plan->dim[d];
        }
        at += THREADS * UNITS * unit * copy->bytes;
    }
    return at;
}

static Source source_of(const ChainRun *run, const ChainStep *steps, int i, int k)
{
    int at = steps[i].operand[k], from = at - CHAIN_RESULT;
    if (k >= operands_of[steps[i].code]) return {SOURCE_UNREAD};
    if (at < 0) return {SOURCE_ZERO};
    if (is_latest(i, k, at)) return {SOURCE_LATEST};
    if (from >= 0) return {column_kind(steps[from].dtype), false, run->steps[from].slot};
    for (int c = 0; c < run->num_copies; c++)
        if (run->copies[c].k == at) return {column_kind(run->dtype[at]), true, run->copies[c].at};
    return {SOURCE_INPUT, false, at};
}

/* The chain for units of `unit` elements. Returns the bytes of shared memory that it needs. */
static size_t make_run(const KernelArgs *args, ChainRun *run, int unit, int stages)
{
    const ChainAttrs *attrs = (const ChainAttrs *)args->attrs;
    const TensorType *y = chain_result(args);
    Broadcast         plan = broadcast_plan_of(args, y);
    ChainStep         steps[CHAIN_MAX_STEPS];
    int               last = plan.ndim - 1;
    *run = {};
    run->ndim = plan.ndim;
    run->count = chain_count(attrs);
    run->stages = stages;
    run->units = (uint32_t)(type_numel(y) / unit);
    run->tiles = (uint32_t)cuda_div_up(run->units, THREADS * UNITS);
    for (int d = 0; d < last; d++) run->dim[d] = divisor(plan.dim[d]);
    run->row = divisor(last ? plan.dim[last] / unit : (int64_t)1 << 32);
    for (int k = 0; k < args->num_in && k < CHAIN_MAX_IN; k++) {
        run->in[k] = (const char *)args->in[k].data;
        run->dtype[k] = (signed char)args->in[k].type.dtype;
        for (int d = 0; d <= last; d++) run->step[k][d] = (uint32_t)plan.step[k][d];
    }
    for (int i = 0; i < run->count; i++) {
        steps[i] = chain_step(attrs, i);
        order_operands(i, &steps[i]);
        run->steps[i].code = steps[i].code;
        run->steps[i].dtype = steps[i].dtype;
        run->steps[i].number = steps[i].number;
        run->steps[i].out = steps[i].out < 0 ? NULL : (char *)args->out[steps[i].out].data;
    }
    run->stage_bytes = find_copies(run, &plan, unit);
    int bytes = find_slots(run, steps, run->stage_bytes * stages, unit == 1 ? 1 : UNITS * unit);
    for (int i = 0; i < run->count; i++)
        for (int k = 0; k < CHAIN_OPERANDS; k++) run->steps[i].from[k] = source_of(run, steps, i, k);
    return (size_t)bytes;
}

/* Elements in a unit: as many as are 16 bytes of the widest tensor that has a number for each column; 1: rows or addresses don't allow
 * more. */
static int find_unit(const KernelArgs *args)
{
    Broadcast plan = broadcast_plan_of(args, chain_result(args));
    int       last = plan.ndim - 1, unit = type_numel(chain_result(args)) < SMALL ? 4 : 8;
    bool      aligned = true;
    for (int k = 0; k < args->num_in && k < CHAIN_MAX_IN; k++) {
        if (!args->in[k].data || !plan.step[k][last]) continue;
        aligned = aligned && is_aligned16(args->in[k].data);
        if (args->in[k].type.dtype == DT_F32) unit = 4;
    }
    for (int k = 0; k < args->num_out && k < CHAIN_MAX_OUT; k++) {
        if (!args->out[k].data) continue;
        aligned = aligned && is_aligned16(args->out[k].data);
        if (args->out[k].type.dtype == DT_F32) unit = 4;
    }
    return aligned && (!last || plan.dim[last] % unit == 0) ? unit : 1;
}

/* Blocks of a grid: as many as the GPU runs at a time, but no more than there are tiles. */
static Status find_grid(const void *kernel, size_t shared, int64_t tiles, unsigned *out_blocks)
{
    int device, count, resident;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, THREADS, shared));
    int64_t most = (int64_t)count * (resident > 0 ? resident : 1);
    *out_blocks = (unsigned)(tiles < most ? tiles : most);
    return OK;
}

template <int UNIT> static Status launch_units(const KernelArgs *args, const ChainRun &run, size_t shared)
{
    unsigned blocks;
    CUDA_TRY(cudaFuncSetAttribute(chain_units<UNIT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    TRY(find_grid((const void *)chain_units<UNIT>, shared, run.tiles, &blocks));
    chain_units<UNIT><<<blocks, THREADS, shared, cuda_stream(args)>>>(run);
    return CUDA_LAUNCHED();
}

static Status launch_elements(const KernelArgs *args, int64_t done)
{
    ChainRun run;
    unsigned blocks;
    size_t   shared = make_run(args, &run, 1, 1);
    TRY(find_grid((const void *)chain_elements, shared, cuda_div_up(run.units - done, THREADS), &blocks));
    chain_elements<<<blocks, THREADS, shared, cuda_stream(args)>>>(run, done);
    return CUDA_LAUNCHED();
}

static Status chain_run(const KernelArgs *args)
{
    ChainRun run;
    int      unit = find_unit(args), device, most;
    int64_t  numel = type_numel(chain_result(args));
    if (unit == 1) return launch_elements(args, 0);
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    size_t shared = make_run(args, &run, unit, STAGES);
    if (shared > (size_t)most) shared = make_run(args, &run, unit, 1);
    if (shared > (size_t)most) return launch_elements(args, 0);
    if (run.units) TRY(unit == 8 ? launch_units<8>(args, run, shared) : launch_units<4>(args, run, shared));
    return numel % unit ? launch_elements(args, numel - numel % unit) : OK;
}

/* The kernel counts elements in 32 bits. */
static bool chain_fits(const Node *node, CudaDevice *device)
{
    (void)device;
    int k = 0;
    while (!node->out[k]) k++;
    return type_numel(&node->out[k]->type) < (int64_t)1 << 32;
}

CUDA_KERNELS(chain, {.dtypes = DT_SET_DECODE, .run = chain_run, .name = "steps", .match = chain_fits})
