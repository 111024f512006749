/* Preloaded into a program, breaks its GPU context after BREAK_AFTER seconds: a kernel traps, and every later CUDA call of the process
 * fails, as after a lost GPU or an uncorrectable ECC error. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef int (*Init)(unsigned);
typedef int (*Retain)(void **context, int device);
typedef int (*SetCurrent)(void *context);
typedef int (*LoadData)(void **module, const void *image);
typedef int (*GetFunction)(void **function, void *module, const char *name);
typedef int (*LaunchKernel)(void *function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared, void *stream,
                            void **params, void **extra);

static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry broken()\n{\n trap;\n ret;\n}\n";

static void *symbol(void *driver, const char *name)
{
    void *found = dlsym(driver, name);
    if (!found) fprintf(stderr, "break_gpu: no %s\n", name);
    return found;
}

static void *break_it(void *unused)
{
    void *driver, *context = NULL, *module = NULL, *function = NULL;
    (void)unused;
    usleep((unsigned)(atof(getenv("BREAK_AFTER")) * 1e6));
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return NULL;
    int error = ((Init)symbol(driver, "cuInit"))(0);
    if (!error) error = ((Retain)symbol(driver, "cuDevicePrimaryCtxRetain"))(&context, 0);
    if (!error) error = ((SetCurrent)symbol(driver, "cuCtxSetCurrent"))(context);
    if (!error) error = ((LoadData)symbol(driver, "cuModuleLoadData"))(&module, ptx);
    if (!error) error = ((GetFunction)symbol(driver, "cuModuleGetFunction"))(&function, module, "broken");
    if (!error) error = ((LaunchKernel)symbol(driver, "cuLaunchKernel"))(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    if (error) fprintf(stderr, "break_gpu: error %d\n", error);
    return NULL;
}

static __attribute__((constructor)) void begin(void)
{
    pthread_t thread;
    if (getenv("BREAK_AFTER") && pthread_create(&thread, NULL, break_it, NULL) == 0) pthread_detach(thread);
}
