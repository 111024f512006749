#include "device/cuda/libraries.h"

#include "base/log.h"
#include "device/cuda/cuda.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_CANDIDATES = 64 };

typedef struct Candidate {
    char path[512];
    long version; /* comparable between candidates for one library; 0: unknown */
} Candidate;

typedef struct Search {
    const char *soname, *package; /* such as libcublasLt.so.13, nvidia_cublas */
    Candidate   found[MAX_CANDIDATES];
    int         num_found;
} Search;

static long parse_version(const char *text) /* 13.1.0.3 -> 13001000003, three digits for each part */
{
    long version = 0, part = 0;
    int  parts = 0;
    for (; parts < 4; text++) {
        if (*text >= '0' && *text <= '9') {
            part = part * 10 + (*text - '0');
            continue;
        }
        version = version * 1000 + part % 1000;
        part = 0;
        parts++;
        if (*text != '.') break;
    }
    while (parts++ < 4) version *= 1000;
    return version;
}

/* Escapes the path's first `len` bytes, so that glob matches only them: a folder may be named [old]. A path that is too long is cut off. */
static const char *literal(const char *path, size_t len, char out[PATH_MAX])
{
    size_t n = 0;
    for (size_t i = 0; i < len && path[i] && n + 3 < PATH_MAX / 2; i++) {
        if (strchr("*?[]\\", path[i])) out[n++] = '\\';
        out[n++] = path[i];
    }
    out[n] = 0;
    return out;
}

/* Version from the real file's name (libx.so.13.1.0.3), or from pip's record beside the package; 0: unknown. */
static long version_of(const Search *search, const char *path)
{
    char        real[PATH_MAX], pattern[PATH_MAX], folder[PATH_MAX];
    const char *suffix = realpath(path, real) ? strstr(real, ".so.") : NULL;
    if (suffix && strchr(suffix + 4, '.')) return parse_version(suffix + 4);
    char *site = strstr(real, "/nvidia/");
    if (!site) return 0;
    snprintf(pattern, sizeof pattern, "%.3000s/%.64s*.dist-info", literal(real, (size_t)(site - real), folder), search->package);
    glob_t names;
    long   version = 0;
    if (glob(pattern, 0, NULL, &names) == 0) {
        const char *dash = strrchr(names.gl_pathv[0], '-');
        for (const char *p = names.gl_pathv[0]; (p = strstr(p, search->package)); p++) dash = strchr(p, '-');
        if (dash) version = parse_version(dash + 1);
    }
    globfree(&names);
    return version;
}

/* Adds candidates in all folders that match the pattern. */
static void look(Search *search, const char *folder_pattern)
{
    char   pattern[PATH_MAX];
    glob_t paths;
    snprintf(pattern, sizeof pattern, "%.4000s/%.64s", folder_pattern, search->soname);
    if (glob(pattern, 0, NULL, &paths) == 0)
        for (size_t i = 0; i < paths.gl_pathc && search->num_found < MAX_CANDIDATES; i++) {
            Candidate *c = &search->found[search->num_found++];
            snprintf(c->path, sizeof c->path, "%.511s", paths.gl_pathv[i]);
            c->version = version_of(search, c->path);
        }
    globfree(&paths);
}

/* prefix: may be a pattern too. */
static void look_in_site_packages(Search *search, const char *prefix)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%.3000s/lib/python3*/site-packages/nvidia/*/lib", prefix);
    look(search, folder);
    snprintf(folder, sizeof folder, "%.3000s/lib/python3*/dist-packages/nvidia/*/lib", prefix);
    look(search, folder);
}

/* Looks in the environment into which the plugin was installed, as site-packages/surogate/lib. */
static void look_beside_plugin(Search *search)
{
    char    folder[PATH_MAX], own[PATH_MAX];
    Dl_info info;
    if (!dladdr((const void *)look_beside_plugin, &info) || !info.dli_fname) return;
    const char *slash = strrchr(info.dli_fname, '/');
    if (!slash) return;
    snprintf(folder, sizeof folder, "%.3000s/../../nvidia/*/lib", literal(info.dli_fname, (size_t)(slash - info.dli_fname), own));
    look(search, folder);
}

/* Looks in the environment of the first python3 in PATH. */
static void look_beside_python(Search *search)
{
    const char *path = getenv("PATH");
    char        prefix[PATH_MAX], folder[PATH_MAX];
    while (path && *path) {
        size_t len = strcspn(path, ":");
        int    n = snprintf(prefix, sizeof prefix, "%.*s/python3", (int)len, path);
        if (n > 0 && (size_t)n < sizeof prefix && access(prefix, X_OK) == 0) {
            snprintf(prefix, sizeof prefix, "%.3000s/..", literal(path, len, folder));
            look_in_site_packages(search, prefix);
            return;
        }
        path += len + (path[len] == ':');
    }
}

static void look_everywhere(Search *search)
{
    const char *given = getenv("SUROGATE_CUDA_LIBS"), *home = getenv("HOME"), *venv = getenv("VIRTUAL_ENV"), *cuda = getenv("CUDA_HOME");
    char        folder[PATH_MAX], exact[PATH_MAX];
    if (given && given[0]) {
        while (*given) {
            size_t len = strcspn(given, ":");
            snprintf(folder, sizeof folder, "%.*s", (int)len, given);
            look(search, literal(given, len, exact));
            if (strcmp(folder, exact) != 0) look(search, folder); /* it was written as a pattern */
            given += len + (given[len] == ':');
        }
        return;
    }
    if (cuda) snprintf(folder, sizeof folder, "%.3000s/lib64", literal(cuda, PATH_MAX, exact)), look(search, folder);
    look(search, "/usr/local/cuda*/lib64");
    look(search, "/usr/lib/x86_64-linux-gnu");
    look_beside_plugin(search);
    if (venv) look_in_site_packages(search, literal(venv, PATH_MAX, exact));
    look_beside_python(search);
    look_in_site_packages(search, "/usr");
    look_in_site_packages(search, "/usr/local");
    look_in_site_packages(search, "/opt/*");
    look_in_site_packages(search, "/opt/*/.venv");
    if (home) snprintf(folder, sizeof folder, "%.3000s/.local", literal(home, PATH_MAX, exact)), look_in_site_packages(search, folder);
}

/* Opens the newest candidate that can be opened, else one from the loader's paths (not if SUROGATE_CUDA_LIBS is set). NULL: none. */
static void *open_newest(Search *search, char *out_path, size_t size)
{
    look_everywhere(search);
    for (;;) {
        Candidate *best = NULL;
        for (int i = 0; i < search->num_found; i++)
            if (search->found[i].path[0] && (!best || search->found[i].version > best->version)) best = &search->found[i];
        if (!best) break;
        void *handle = dlopen(best->path, RTLD_NOW | RTLD_LOCAL);
        snprintf(out_path, size, "%s", best->path);
        if (handle) return handle;
        best->path[0] = 0;
    }
    snprintf(out_path, size, "%s", search->soname);
    const char *given = getenv("SUROGATE_CUDA_LIBS");
    return given && given[0] ? NULL : dlopen(search->soname, RTLD_NOW | RTLD_LOCAL);
}

static Status resolve(void *handle, const char *name, const char *path, void *out)
{
    void *symbol = dlsym(handle, name);
    FAIL_IF(!symbol, ERR_UNSUPPORTED, "device cuda: %s lacks %s: a newer version is needed", path, name);
    memcpy(out, &symbol, sizeof symbol);
    return OK;
}

static Status open_cublas(CudaLibraries *lib)
{
    char   soname[32];
    Search search = {.soname = soname, .package = "nvidia_cublas"};
    snprintf(soname, sizeof soname, "libcublasLt.so.%d", CUBLAS_VER_MAJOR);
    void *handle = open_newest(&search, lib->cublas_path, sizeof lib->cublas_path);
    FAIL_IF(!handle, ERR_UNSUPPORTED,
            "device cuda: %s wasn't found in the loader's paths, the CUDA toolkit, or pip's nvidia-cublas: install one "
            "of them, or name "
            "its folder in SUROGATE_CUDA_LIBS",
            soname);
#define X(name) TRY(resolve(handle, #name, lib->cublas_path, &lib->name));
    CUBLASLT_FUNCTIONS(X)
#undef X
    lib->cublas_version = lib->cublasLtGetVersion();
    cublasStatus_t status = lib->cublasLtCreate(&lib->blas);
    FAIL_IF(status != CUBLAS_STATUS_SUCCESS, ERR_DEVICE, "cuBLASLt (%s): cannot create a handle: status %d", lib->cublas_path, (int)status);
    return OK;
}

#if HAVE_CUDNN
static Status open_cudnn(CudaLibraries *lib)
{
    Search search = {.soname = "libcudnn.so.9", .package = "nvidia_cudnn"}, nvrtc = {.package = "nvidia_cuda_nvrtc"};
    char   soname[32], nvrtc_path[512];
    void  *handle = open_newest(&search, lib->cudnn_path, sizeof lib->cudnn_path);
    if (!handle) return OK;
    /* cuDNN compiles with NVRTC and looks for it by name, so load it first */
    snprintf(soname, sizeof soname, "libnvrtc.so.%d", CUDART_VERSION / 1000);
    nvrtc.soname = soname;
    open_newest(&nvrtc, nvrtc_path, sizeof nvrtc_path);
#define X(name) TRY(resolve(handle, #name, lib->cudnn_path, &lib->name));
    CUDNN_FUNCTIONS(X)
#undef X
    lib->cudnn_version = lib->cudnnGetVersion();
    return OK;
}

cudnnHandle_t cuda_cudnn_handle(CudaLibraries *lib)
{
    if (!lib->cudnn_version || lib->dnn) return lib->dnn;
    cudnnStatus_t status = lib->cudnnCreate(&lib->dnn);
    if (status == CUDNN_STATUS_SUCCESS) return lib->dnn;
    log_info("cuDNN (%s) doesn't work here: %s; our own attention kernels are used", lib->cudnn_path, lib->cudnnGetErrorString(status));
    lib->dnn = NULL;
    lib->cudnn_version = 0;
    return NULL;
}
#endif

Status cuda_libraries_open(CudaLibraries *lib)
{
    TRY(open_cublas(lib));
#if HAVE_CUDNN
    TRY(open_cudnn(lib));
#endif
    return OK;
}

void *cuda_library_open(const char *soname, const char *package, char *out_path, size_t size)
{
    Search search = {.soname = soname, .package = package};
    return open_newest(&search, out_path, size);
}

void cuda_libraries_close(CudaLibraries *lib)
{
    if (lib->blas) lib->cublasLtDestroy(lib->blas);
#if HAVE_CUDNN
    if (lib->dnn) lib->cudnnDestroy(lib->dnn);
#endif
}
