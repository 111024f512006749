#include "base/cpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

atomic_bool           cpu_bf16;
static bool           there, there_bf16;
static atomic_bool    off;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void look(void)
{
    const char *given = getenv("SUROGATE_AVX512");
    there = !(given && strcmp(given, "0") == 0) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    there_bf16 = there && __builtin_cpu_supports("avx512bf16");
    atomic_store(&cpu_bf16, there_bf16);
}

bool cpu_avx512(void)
{
    pthread_once(&once, look);
    return there && !atomic_load_explicit(&off, memory_order_relaxed);
}

void cpu_avx512_forbid(bool forbidden)
{
    pthread_once(&once, look);
    atomic_store(&off, forbidden);
    atomic_store(&cpu_bf16, there_bf16 && !forbidden);
}
