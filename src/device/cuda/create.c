/* The plugin's exported functions. Creating a device finds the GPU, checks it and prepares it; the message of a failure says what is
 * missing. */
#include "device/cuda/cuda.h"
#include "device/cuda/gemm.h"
#include "device/cuda/plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
EXPORT Status surogate_cuda_create(const CudaHost *host, int index, Device **out);
EXPORT void   surogate_cuda_describe(Device *device, char *out, size_t size);
EXPORT Status surogate_cuda_links(Device *device, char *out, size_t size);

static Status check_host(const CudaHost *host)
{
    bool same = host->args_size == sizeof(KernelArgs) && host->node_size == sizeof(Node) && host->api_size == sizeof(DeviceApi);
    FAIL_IF(host->abi_version != CUDA_ABI_VERSION || !same, ERR_UNSUPPORTED,
            "device cuda: the plugin is of another build than the program (interface %u, expected %d): build both together",
            host->abi_version, CUDA_ABI_VERSION);
    return OK;
}

static Status check_driver(int *out_count, int *out_driver)
{
    *out_count = 0;
    *out_driver = 0;
    cudaDriverGetVersion(out_driver);
    cudaError_t error = cudaGetDeviceCount(out_count);
    FAIL_IF(error == cudaErrorInsufficientDriver && *out_driver == 0, ERR_UNSUPPORTED,
            "device cuda: no NVIDIA driver is installed (libcuda.so.1 isn't found)");
    FAIL_IF(error == cudaErrorInsufficientDriver, ERR_UNSUPPORTED,
            "device cuda: the driver supports CUDA %d.%d, but this build needs %d.%d: install a newer driver", *out_driver / 1000,
            *out_driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    FAIL_IF(error == cudaErrorNoDevice || (error == cudaSuccess && *out_count == 0), ERR_UNSUPPORTED,
            "device cuda: the driver sees no GPU (CUDA_VISIBLE_DEVICES=%s)",
            getenv("CUDA_VISIBLE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES") : "unset");
    CUDA_TRY(error);
    return OK;
}

static Status open_gpu(CudaDevice *cuda)
{
    struct cudaDeviceProp prop;
    CUDA_TRY(cudaGetDeviceProperties(&prop, cuda->index));
    cuda->sm = 10 * prop.major + prop.minor;
    snprintf(cuda->name, sizeof cuda->name, "%.63s", prop.name);
    FAIL_IF(cuda->sm < CUDA_LEAST_SM, ERR_UNSUPPORTED, "device cuda: GPU %d, %s, has compute capability %d.%d; at least %d.%d is needed",
            cuda->index, cuda->name, prop.major, prop.minor, CUDA_LEAST_SM / 10, CUDA_LEAST_SM % 10);
    cuda->num_sms = prop.multiProcessorCount;
    cuda->shared_bytes = prop.sharedMemPerBlockOptin;
    cuda->memory_bytes = (int64_t)prop.totalGlobalMem;
    CUDA_TRY(cudaSetDevice(cuda->index));
    CUDA_TRY(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking));
    cuda->base.stream = cuda->stream;
    CUDA_TRY(cudaHostAlloc((void **)&cuda->staging, CUDA_STAGING_BYTES, cudaHostAllocDefault));
    for (int i = 0; i < CUDA_STAGING_PARTS; i++) CUDA_TRY(cudaEventCreateWithFlags(&cuda->staging_free[i], cudaEventDisableTiming));
    TRY(cuda_kernels_check(cuda));
    return cuda_libraries_open(&cuda->lib);
}

Status surogate_cuda_create(const CudaHost *host, int index, Device **out)
{
    int count;
    cuda_host_set(host);
    TRY(check_host(host));
    CudaDevice *cuda = calloc(1, sizeof *cuda);
    if (!cuda) fatal_out_of_memory(sizeof *cuda);
    cuda->base.api = &cuda_device_api;
    cuda->index = index;
    const char *eager = getenv("SUROGATE_CUDA_EAGER");
    cuda->eager = eager && strcmp(eager, "0") != 0 && eager[0];
    Status status = check_driver(&count, &cuda->driver_version);
    if (status == OK && index >= count)
        status = status_fail(ERR_INVALID, "device cuda: there is no GPU %d, the driver sees %d", index, count);
    if (status == OK) status = open_gpu(cuda);
    if (status != OK) {
        cuda_device_api.destroy(&cuda->base);
        return status;
    }
    *out = &cuda->base;
    return OK;
}

void surogate_cuda_describe(Device *device, char *out, size_t size)
{
    const CudaDevice *cuda = (const CudaDevice *)device;
    size_t            v = cuda->lib.cudnn_version;
    char              dnn[600] = "cuDNN: not found (our own attention kernels are used)";
    if (v) snprintf(dnn, sizeof dnn, "cuDNN %zu.%zu.%zu (%s)", v / 10000, v / 100 % 100, v % 100, cuda->lib.cudnn_path);
    snprintf(out, size,
             "%s, compute capability %d.%d, %d multiprocessors, %.1f GiB\ndriver: CUDA %d.%d, runtime %d.%d\ncuBLASLt "
             "%zu.%zu.%zu (%s)\n%s",
             cuda->name, cuda->sm / 10, cuda->sm % 10, cuda->num_sms, (double)cuda->memory_bytes / (1 << 30), cuda->driver_version / 1000,
             cuda->driver_version % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, cuda->lib.cublas_version / 10000,
             cuda->lib.cublas_version / 100 % 100, cuda->lib.cublas_version % 100, cuda->lib.cublas_path, dnn);
}

Status surogate_cuda_links(Device *device, char *out, size_t size)
{
    StrBuf text = {0};
    Status status = cuda_measure_links((CudaDevice *)device, &text);
    snprintf(out, size, "%s", strbuf_cstr(&text));
    strbuf_deinit(&text);
    return status;
}
