#include "base/cpu.h"

#include <cpuid.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

atomic_bool           cpu_bf16;
static bool           there, there_bf16, there_amx, there_ways;
static atomic_bool    off;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Linux lets a process use the AMX registers only after it asked for them (Documentation/arch/x86/xstate.rst). */
static bool ask_for_amx(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & AMX_BF16) || !(d & AMX_TILE)) return false;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static void look(void)
{
    const char *given = getenv("SUROGATE_AVX512");
    there = !(given && strcmp(given, "0") == 0) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    there_bf16 = there && __builtin_cpu_supports("avx512bf16");
    there_amx = there && ask_for_amx();
    there_ways = there && __builtin_cpu_is("amd") && sysconf(_SC_LEVEL1_DCACHE_ASSOC) >= 12;
    atomic_store(&cpu_bf16, there_bf16);
}

bool cpu_avx512(void)
{
    pthread_once(&once, look);
    return there && !atomic_load_explicit(&off, memory_order_relaxed);
}

bool cpu_has_bf16(void)
{
    return cpu_avx512() && there_bf16;
}

bool cpu_amx(void)
{
    return cpu_avx512() && there_amx;
}

bool cpu_reads_aliased(void)
{
    return cpu_avx512() && there_ways;
}

void cpu_avx512_forbid(bool forbidden)
{
    pthread_once(&once, look);
    atomic_store(&off, forbidden);
    atomic_store(&cpu_bf16, there_bf16 && !forbidden);
}
