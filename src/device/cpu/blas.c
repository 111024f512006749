/* OpenBLAS chooses its kernels by CPU model when the program is loaded. Version 0.3.21 doesn't know AMD's processors with AVX-512 and
 * gives them its AVX2 kernels: half of what a core can do (docs/dependencies.md has the figures). So we choose again: its own
 * start-up functions, run once more under OPENBLAS_CORETYPE, which is its documented way of naming kernels. */
#include "device/cpu/blas.h"

#include <openblas-pthread/cblas.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Of OpenBLAS, exported but in no header. */
void gotoblas_dynamic_init(void);
void gotoblas_dynamic_quit(void);
int  blas_thread_shutdown_(void);

static bool cpu_has_avx512(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
}

static void start(void)
{
    /* its threads go: ours call it. (The build without threads is no choice: it claims packing buffers without a lock.) */
    openblas_set_num_threads(1);
    blas_thread_shutdown_();
    const char *chosen = openblas_get_corename();
    bool        is_avx2 = strcmp(chosen, "Haswell") == 0 || strcmp(chosen, "Zen") == 0;
    if (!is_avx2 || !cpu_has_avx512() || getenv("OPENBLAS_CORETYPE")) return;
    gotoblas_dynamic_quit();
    setenv("OPENBLAS_CORETYPE", "SKYLAKEX", 1);
    gotoblas_dynamic_init();
    unsetenv("OPENBLAS_CORETYPE");
}

void blas_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
}

const char *blas_core_name(void)
{
    blas_init();
    return openblas_get_corename();
}

void blas_sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    blas_init();
    if (m == 0 || n == 0) return;
    cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans, trans_b ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k,
                alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
}
