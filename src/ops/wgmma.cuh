/* Tiles of 64 rows in shared memory as Hopper's warpgroup products read them. Pieces of 64 columns have 8 KiB each: rows of 128 bytes whose
 * 16-byte chunks are permuted by row (the hardware's 128-byte swizzle). A warpgroup of 128 threads computes 64 rows of a result, which its
 * registers hold as mma.sync's would. Compute capability 9.0 only. */
#pragma once

#include "ops/mma.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define WAIT_FOR_PHASE "try_wait" /* suspends the thread for a while */
#else
#define WAIT_FOR_PHASE "test_wait"
#endif

enum { PIECE_BYTES = TILE_ROWS * 128 };
template <int D> struct SwizzledTile {
    enum { BYTES = D / 64 * PIECE_BYTES };
};

/* A descriptor with the 128-byte swizzle. Strides are in bytes: lead from one piece of 64 columns to the next (used only by operands with
 * rows along k), 1024 from eight rows to the next eight. */
static __device__ __forceinline__ uint64_t tile_descriptor(const char *p, uint32_t lead)
{
    uint64_t address = shared_address(p);
    return (address & 0x3FFFF) >> 4 | (uint64_t)(lead >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* Descriptor of columns [16k, 16k + 16) of all rows: an operand of a product that sums over columns. */
static __device__ __forceinline__ uint64_t columns_of(const char *tile, int k)
{
    return tile_descriptor(tile + k / 4 * PIECE_BYTES + k % 4 * 32, 16);
}

/* Descriptor of rows [16k, 16k + 16) of all columns: an operand of a product that sums over rows. */
static __device__ __forceinline__ uint64_t rows_of(const char *tile, int k)
{
    return tile_descriptor(tile + k * 2048, PIECE_BYTES);
}

static __device__ __forceinline__ void wgmma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits until at most N groups of products are in flight. */
template <int N> static __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
static __device__ __forceinline__ void wgmma_end()
{
    asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::: "memory");
}

/* Keeps the compiler from moving other uses of an accumulator into the time in which products write it. */
template <int N> static __device__ __forceinline__ void hold(float (&c)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+f"(c[n][e])::"memory");
}

/* Makes what this thread's copies wrote visible to products after the next barrier. */
static __device__ __forceinline__ void publish_tiles()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Barriers in shared memory: a phase is over after `count` arrivals. Phases are told apart by their parity; the first has parity 0. */
static __device__ __forceinline__ void phases_init(uint64_t *barrier, int count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
static __device__ __forceinline__ void phase_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/* Waits until the phase of this parity is over. Before the first phase, parity 1 counts as over. */
static __device__ __forceinline__ void phase_wait(uint64_t *barrier, int parity)
{
    asm volatile("{\n\t.reg .pred over;\n\t"
                 "again: mbarrier." WAIT_FOR_PHASE ".parity.shared.b64 over, [%0], %1;\n\t"
                 "@!over bra again;\n\t}" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* The current one of a ring of STAGES buffers, and how often the ring was passed, modulo 2. */
template <int STAGES> struct Ring {
    int stage = 0, round = 0;

    __device__ __forceinline__ void next()
    {
        if (++stage < STAGES) return;
        stage = 0;
        round ^= 1;
    }
};

/* Copies tiles of one head by a thread block of THREADS; a thread copies the same 16 bytes of some rows. PIECE: bytes from one piece of a
 * tile to the next. If D isn't a power of two, a thread copies the same 16 bytes of each piece. */
template <int D, int THREADS = MMA_THREADS, int PIECE = PIECE_BYTES> struct TileCopy {
    enum { COLUMNS = D & (D - 1) ? 64 : D, CHUNKS = COLUMNS / 8, ROWS = THREADS / CHUNKS };
    const bf16 *from;
    int64_t     stride;
    int         row, to;

    /* thread: index among the threads that copy */
    __device__ __forceinline__ TileCopy(const Heads &h, int b, int head, int thread = threadIdx.x)
        : stride(h.token_stride), row(thread / CHUNKS)
    {
        int chunk = thread % CHUNKS;
        from = (const bf16 *)h.data + b * h.batch_stride + (int64_t)head * D + row * stride + chunk * 8;
        to = chunk / 8 * PIECE + row * 128 + ((chunk % 8) ^ (row & 7)) * 16;
    }

    /* Begins to copy rows [t, t + 64), `ahead` elements on; rows at `end` and after are zeros. */
    __device__ __forceinline__ void begin(char *tile, int t, int end, int64_t ahead = 0) const
    {
        static_assert(ROWS % 4 == 0, "rows i and i + ROWS have chunks in the same order, or with their halves exchanged");
        const bf16 *p = from + t * stride + ahead;
#pragma unroll
        for (int i = 0; i < TILE_ROWS; i += ROWS, p += ROWS * stride) {
            bool there = t + row + i < end;
#pragma unroll
            for (int col = 0; col < D; col += COLUMNS)
                copy_async(tile + (to ^ (i & 4) * 16) + i * 128 + col / 64 * PIECE, there ? p + col : from, there);
        }
    }
};

template <int D, int THREADS = MMA_THREADS>
static __device__ __forceinline__ void load_swizzled(char *tile, const Heads &h, int b, int t, int end, int head)
{
    TileCopy<D, THREADS>(h, b, head).begin(tile, t, end);
}

/* c (64 x 64) = a times the transpose of b, both from columns_of; ADD: += */
template <int ADD> static __device__ __forceinline__ void wgmma_tiles(float (&c)[8][4], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, %32, %33, %34, 1, 1, 0, 0;"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
                   "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
                   "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
                   "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
                 : "l"(a), "l"(b), "n"(ADD));
}

/* c (64 x 64) = a (in registers) times the transpose of b, which is from columns_of; ADD: += */
template <int ADD> static __device__ __forceinline__ void wgmma_turned(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, %37, 1, 1, 0;"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
                   "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
                   "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
                   "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD));
}

/* c (64 x 64) = a times the transpose of b, summed over all D columns of both tiles. */
template <int D> static __device__ __forceinline__ void wgmma_all_tiles(float (&c)[8][4], const char *a, const char *b)
{
    wgmma_tiles<0>(c, columns_of(a, 0), columns_of(b, 0));
#pragma unroll
    for (int k = 1; k < D / 16; k++) wgmma_tiles<1>(c, columns_of(a, k), columns_of(b, k));
}

template <int D> static __device__ __forceinline__ void wgmma_all_turned(float (&c)[8][4], const uint32_t (&a)[D / 16][4], const char *b)
{
    wgmma_turned<0>(c, a[0], columns_of(b, 0));
#pragma unroll
    for (int k = 1; k < D / 16; k++) wgmma_turned<1>(c, a[k], columns_of(b, k));
}

/* Loads rows of a product's left operand, 16 a warp from t on: columns [16k, 16k + 16) of one head into a[k]. Rows at `end` and after are
 * zeros. */
template <int D> static __device__ __forceinline__ void load_rows(uint32_t (&a)[D / 16][4], const Heads &h, int b, int t, int end, int head)
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int         row = t + (lane >> 2) + half * 8;
        const bf16 *from = (const bf16 *)h.data + b * h.batch_stride + row * h.token_stride + (int64_t)head * D + (lane & 3) * 2;
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int right = 0; right < 2; right++)
                a[k][2 * right + half] = row < end ? *reinterpret_cast<const uint32_t *>(from + k * 16 + right * 8) : 0;
    }
}

/* c (64 x 64) += a (in registers) times b, which is from rows_of; ADD 0: = */
template <int ADD = 1> static __device__ __forceinline__ void wgmma_straight(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, %37, 1, 1, 1;"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
                   "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
                   "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
                   "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD));
}

/* c (64 x 128) = a (in registers) times the transpose of b, 16 columns of 128 rows; ADD: += */
template <int ADD> static __device__ __forceinline__ void wgmma_turned(float (&c)[16][4], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, {%64, %65, %66, %67}, %68, %69, 1, 1, 0;"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
                   "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
                   "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
                   "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]),
                   "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]), "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]),
                   "+f"(c[10][0]), "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]),
                   "+f"(c[11][3]), "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]),
                   "+f"(c[13][2]), "+f"(c[13][3]), "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]),
                   "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD));
}

/* c (64 x 128) = a times the transpose of b, 16 columns of 64 and of 128 rows; ADD: += */
template <int ADD> static __device__ __forceinline__ void wgmma_tiles(float (&c)[16][4], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, %64, %65, %66, 1, 1, 0, 0;"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
                   "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
                   "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
                   "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]),
                   "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]), "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]),
                   "+f"(c[10][0]), "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]),
                   "+f"(c[11][3]), "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]),
                   "+f"(c[13][2]), "+f"(c[13][3]), "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]),
                   "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3])
                 : "l"(a), "l"(b), "n"(ADD));
}

/* c (64 x 128) += a (in registers) times b, which is from rows_of; ADD 0: = */
template <int ADD = 1> static __device__ __forceinline__ void wgmma_straight(float (&c)[16][4], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, {%64, %65, %66, %67}, %68, %69, 1, 1, 1;"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
                   "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
                   "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
                   "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]),
                   "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]), "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]),
                   "+f"(c[10][0]), "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]),
                   "+f"(c[11][3]), "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]),
                   "+f"(c[13][2]), "+f"(c[13][3]), "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]),
                   "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD));
}

/* c (64 x 256) += a (in registers) times b, which is from rows_of. */
static __device__ __forceinline__ void wgmma_straight(float (&c)[32][4], const uint32_t (&a)[4], uint64_t b)
{
    wgmma_straight(reinterpret_cast<float(&)[16][4]>(c[0]), a, b);
    wgmma_straight(reinterpret_cast<float(&)[16][4]>(c[16]), a, b + (2 * PIECE_BYTES >> 4)); /* the next two pieces */
}
