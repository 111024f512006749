/* Opens the CUDA plugin at run time. It is searched beside the program or library that contains this code, in ../lib, ../lib64 and
 * ../lib/x86_64-linux-gnu from there, or only at SUROGATE_CUDA_PLUGIN if that is set. There may be a plugin for CUDA 13 and one for CUDA
 * 12, for older drivers. */
#include "device/cuda/plugin.h"

#include "base/log.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const plugin_files[] = {"libsurogate_cuda.so", "libsurogate_cuda12.so"};

static Status host_fail(Status status, const char *text)
{
    return status_fail(status, "%s", text);
}

static void host_log(const char *text)
{
    log_info("%s", text);
}

static const CudaHost host = {
    .abi_version = CUDA_ABI_VERSION,
    .args_size = sizeof(KernelArgs),
    .node_size = sizeof(Node),
    .api_size = sizeof(DeviceApi),
    .fail = host_fail,
    .message = status_message,
    .log = host_log,
};

/* The folder of the library or program that contains this code. False: unknown. */
static bool own_folder(char *out, size_t size)
{
    struct link_map *map = NULL;
    Dl_info          info;
    bool             in_library = dladdr1(&host, &info, (void **)&map, RTLD_DL_LINKMAP) && map && map->l_name[0];
    ssize_t          n = in_library ? snprintf(out, size, "%s", map->l_name) : readlink("/proc/self/exe", out, size - 1);
    if (n <= 0 || (size_t)n >= size) return false;
    out[n] = 0;
    char *slash = strrchr(out, '/');
    if (!slash) return false;
    *slash = 0;
    return true;
}

/* A function of the driver; NULL: there is no driver, or it lacks the function. */
static void *driver_function(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL), *function = driver ? dlsym(driver, name) : NULL;
    dlerror(); /* clears the error message that a missing driver leaves */
    return function;
}

/* The newest CUDA version that the driver supports, such as 13000; 0: there is no driver. */
static int driver_version(void)
{
    int version = 0, (*get)(int *) = NULL;
    *(void **)&get = driver_function("cuDriverGetVersion");
    return get && get(&version) == 0 ? version : 0;
}

/* Refuses a GPU that no plugin has kernels for. It asks the driver, so that nobody installs a plugin or a newer driver in vain. If the
 * driver doesn't answer, OK: the plugin will explain. */
static Status check_gpu(int index)
{
    enum { ATTRIBUTE_MAJOR = 75, ATTRIBUTE_MINOR = 76 }; /* values of CUdevice_attribute */
    int (*init)(unsigned) = NULL, (*get)(int *, int) = NULL, (*get_name)(char *, int, int) = NULL, (*get_attribute)(int *, int, int) = NULL;
    int  gpu, major, minor;
    char name[64] = "";
    *(void **)&init = driver_function("cuInit");
    *(void **)&get = driver_function("cuDeviceGet");
    *(void **)&get_name = driver_function("cuDeviceGetName");
    *(void **)&get_attribute = driver_function("cuDeviceGetAttribute");
    if (!init || !get || !get_name || !get_attribute || init(0) != 0 || get(&gpu, index) != 0) return OK;
    if (get_attribute(&major, ATTRIBUTE_MAJOR, gpu) != 0 || get_attribute(&minor, ATTRIBUTE_MINOR, gpu) != 0) return OK;
    if (get_name(name, sizeof name, gpu) != 0) name[0] = 0;
    FAIL_IF(
        10 * major + minor < CUDA_LEAST_SM, ERR_UNSUPPORTED,
        "device cuda: GPU %d, %.63s, has compute capability %d.%d; at least %d.%d is needed (A100, A10, L4, RTX 30 and later); use such a "
        "GPU (of several, CUDA_VISIBLE_DEVICES chooses), or the CPU: device: cpu",
        index, name, major, minor, CUDA_LEAST_SM / 10, CUDA_LEAST_SM % 10);
    return OK;
}

/* Opens the file in the first of the places where it exists. True: `searched` is its path, *out NULL if it can't be opened. False: it
 * exists nowhere, and the places are added to `searched`. */
static bool open_file(const char *folder, const char *file, char *searched, size_t size, void **out)
{
    /* tests and benches are in subfolders of the build folder; then the names that systems use for library folders */
    static const char *const beside[] = {"", "../", "../lib/", "../lib64/", "../lib/x86_64-linux-gnu/"};
    char                     path[PATH_MAX];
    size_t                   used = strlen(searched);
    for (size_t i = 0; i < sizeof beside / sizeof beside[0]; i++) {
        snprintf(path, sizeof path, "%s/%s%s", folder, beside[i], file);
        int n = snprintf(searched + used, size - used, "%s%s", used ? ", " : "", path);
        if (n > 0 && (size_t)n < size - used) used += (size_t)n;
        if (access(path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR)) continue;
        snprintf(searched, size, "%s", path);
        *out = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        return true;
    }
    return false;
}

/* Opens the plugin for the driver's CUDA generation, else the other one. `searched`: the path opened, or all places searched. NULL:
 * failed. */
static void *open_plugin(char *searched, size_t size)
{
    char        folder[PATH_MAX / 2];
    const char *given = getenv("SUROGATE_CUDA_PLUGIN");
    int         driver = driver_version(), first = driver > 0 && driver < 13000;
    searched[0] = 0;
    if (given && given[0]) {
        snprintf(searched, size, "%s", given);
        return dlopen(given, RTLD_NOW | RTLD_LOCAL);
    }
    if (!own_folder(folder, sizeof folder)) snprintf(folder, sizeof folder, ".");
    void *handle = NULL;
    if (!open_file(folder, plugin_files[first], searched, size, &handle)) open_file(folder, plugin_files[!first], searched, size, &handle);
    return handle;
}

Status device_cuda_create(int index, Device **out)
{
    TRY(check_gpu(index));
    char             searched[12 * PATH_MAX];
    void            *handle = open_plugin(searched, sizeof searched);
    CudaPluginCreate create = NULL;
    if (!handle) {
        const char *error = dlerror();
        FAIL_IF(error, ERR_UNSUPPORTED, "device cuda: cannot open the plugin: %s", error);
        FAIL(ERR_UNSUPPORTED, "device cuda: there is no plugin (looked for %s): build with nvcc installed, or set SUROGATE_CUDA_PLUGIN",
             searched);
    }
    *(void **)&create = dlsym(handle, CUDA_PLUGIN_CREATE);
    FAIL_IF(!create, ERR_UNSUPPORTED, "device cuda: %s lacks %s: it isn't Surogate's plugin", searched, CUDA_PLUGIN_CREATE);
    return create(&host, index, out); /* the plugin is never closed, as its libraries keep state until the process ends */
}

void device_cuda_describe(Device *device, char *out, size_t size)
{
    char               searched[8 * PATH_MAX];
    void              *handle = open_plugin(searched, sizeof searched);
    CudaPluginDescribe describe = NULL;
    out[0] = 0;
    if (handle) *(void **)&describe = dlsym(handle, CUDA_PLUGIN_DESCRIBE);
    if (describe) describe(device, out, size);
}

Status device_cuda_links(Device *device, char *out, size_t size)
{
    char            searched[8 * PATH_MAX];
    void           *handle = open_plugin(searched, sizeof searched);
    CudaPluginLinks links = NULL;
    out[0] = 0;
    if (handle) *(void **)&links = dlsym(handle, CUDA_PLUGIN_LINKS);
    FAIL_IF(!links, ERR_UNSUPPORTED, "device cuda: the plugin can't measure links");
    return links(device, out, size);
}
