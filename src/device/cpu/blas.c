/* OpenBLAS chooses its kernels when the program is loaded, by CPU model, or by OPENBLAS_CORETYPE where that is set. We
 * choose again, by what the CPU can do and nothing else: AVX-512 kernels do twice the work of AVX2 ones, and neither a
 * newer model than the library knows nor a variable meant for another program's OpenBLAS may halve our speed or change
 * the bits of a run. */
#include "device/cpu/blas.h"

#include <openblas-pthread/cblas.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Of OpenBLAS, exported but in no header. dynamic_quit only forgets the choice. */
void gotoblas_dynamic_init(void);
void gotoblas_dynamic_quit(void);

/* OpenBLAS's kernels for small products of two plain matrices take scratch from malloc at each call, which a train step
 * mustn't; the linker puts this function in place of the one that lets them be used (-Wl,--wrap). */
int __real_sgemm_small_matrix_permit_SKYLAKEX(int trans_a, int trans_b, long m, long n, long k, float alpha, float beta);
int __wrap_sgemm_small_matrix_permit_SKYLAKEX(int trans_a, int trans_b, long m, long n, long k, float alpha, float beta);

int __wrap_sgemm_small_matrix_permit_SKYLAKEX(int trans_a, int trans_b, long m, long n, long k, float alpha, float beta)
{
    return (trans_a || trans_b) && __real_sgemm_small_matrix_permit_SKYLAKEX(trans_a, trans_b, m, n, k, alpha, beta);
}

/* OpenBLAS starts a thread per core when the program is loaded, which spin before they sleep: none is wanted, ours call it. (The
 * build without threads is no choice: it claims packing buffers without a lock.) Put in place by the linker, too. */
int __wrap_blas_thread_init(void);

int __wrap_blas_thread_init(void)
{
    return 0;
}

static bool cpu_has_avx512(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512cd");
}

/* OpenBLAS's own start-up function, run once more under OPENBLAS_CORETYPE, its documented way of naming kernels. */
static void choose_kernels(const char *core)
{
    const char *variable = "OPENBLAS_CORETYPE", *set = getenv(variable);
    char       *before = set ? strdup(set) : NULL;
    setenv(variable, core, 1);
    gotoblas_dynamic_quit();
    gotoblas_dynamic_init();
    if (before)
        setenv(variable, before, 1);
    else
        unsetenv(variable);
    free(before);
}

static void start(void)
{
    openblas_set_num_threads(1);
    const char *core = cpu_has_avx512() ? "SkylakeX" : "Haswell";
    if (strcmp(openblas_get_corename(), core) != 0) choose_kernels(core);
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
    cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans, trans_b ? CblasTrans : CblasNoTrans, (int)m, (int)n,
                (int)k, alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
}
