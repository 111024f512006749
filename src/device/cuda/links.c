/* Measures a GPU's links: to pinned memory of the host and to the machine's other GPUs (NVLink if there is one, else PCIe). */
#include "device/cuda/cuda.h"
#include "device/cuda/kernel.h"
#include "device/cuda/plugin.h"

#include <stdio.h>

enum { BYTES = 256 << 20, COPIES = 8 };

typedef struct Ends {
    void *dst, *src;
    int   dst_gpu, src_gpu; /* indexes of the GPUs; -1: host memory */
} Ends;

static Status copy(const Ends *ends, cudaStream_t stream)
{
    if (ends->dst_gpu >= 0 && ends->src_gpu >= 0)
        CUDA_TRY(cudaMemcpyPeerAsync(ends->dst, ends->dst_gpu, ends->src, ends->src_gpu, BYTES, stream));
    else
        CUDA_TRY(cudaMemcpyAsync(ends->dst, ends->src, BYTES, cudaMemcpyDefault, stream));
    return OK;
}

static Status copies(const Ends *ends, cudaStream_t stream, cudaEvent_t begin, cudaEvent_t end, double *out_bytes_per_second)
{
    float ms = 0;
    TRY(copy(ends, stream));
    CUDA_TRY(cudaEventRecord(begin, stream));
    for (int i = 0; i < COPIES; i++) TRY(copy(ends, stream));
    CUDA_TRY(cudaEventRecord(end, stream));
    CUDA_TRY(cudaStreamSynchronize(stream));
    CUDA_TRY(cudaEventElapsedTime(&ms, begin, end));
    *out_bytes_per_second = (double)BYTES * COPIES / (1e-3 * (double)ms);
    return OK;
}

static Status measure(const Ends *ends, cudaStream_t stream, double *out_bytes_per_second)
{
    cudaEvent_t begin = NULL, end = NULL;
    CUDA_TRY(cudaEventCreate(&begin));
    cudaError_t error = cudaEventCreate(&end);
    Status      status = error == cudaSuccess ? copies(ends, stream, begin, end, out_bytes_per_second)
                                              : cuda_failed(error, "cudaEventCreate", __FILE__, __LINE__);
    cudaEventDestroy(begin);
    if (end) cudaEventDestroy(end);
    return status;
}

static Status to_host(CudaDevice *cuda, void *mine, StrBuf *out)
{
    void  *host;
    double up = 0, down = 0;
    CUDA_TRY(cudaHostAlloc(&host, BYTES, cudaHostAllocDefault));
    Status status = measure(&(Ends){mine, host, cuda->index, -1}, cuda->stream, &up);
    if (status == OK) status = measure(&(Ends){host, mine, -1, cuda->index}, cuda->stream, &down);
    cudaFreeHost(host);
    TRY(status);
    strbuf_printf(out, "%8.1f GB/s from pinned host memory, %.1f GB/s to it\n", up * 1e-9, down * 1e-9);
    return OK;
}

static Status to_peer(CudaDevice *cuda, int peer, void *mine, StrBuf *out)
{
    void  *theirs = NULL;
    int    direct = 0;
    double rate = 0;
    CUDA_TRY(cudaDeviceCanAccessPeer(&direct, cuda->index, peer));
    CUDA_TRY(cudaSetDevice(peer));
    cudaError_t error = cudaMalloc(&theirs, BYTES);
    CUDA_TRY(cudaSetDevice(cuda->index));
    CUDA_TRY(error);
    if (direct && cudaDeviceEnablePeerAccess(peer, 0) == cudaErrorPeerAccessAlreadyEnabled) cudaGetLastError();
    Status status = measure(&(Ends){theirs, mine, peer, cuda->index}, cuda->stream, &rate);
    cudaFree(theirs);
    TRY(status);
    strbuf_printf(out, "%8.1f GB/s to GPU %d, %s\n", rate * 1e-9, peer,
                  direct ? "direct (NVLink, or PCIe where there is none)" : "through the host");
    return OK;
}

Status cuda_measure_links(CudaDevice *cuda, StrBuf *out)
{
    void *mine;
    int   count = 0;
    CUDA_TRY(cudaGetDeviceCount(&count));
    CUDA_TRY(cudaMalloc(&mine, BYTES));
    Status status = to_host(cuda, mine, out);
    for (int peer = 0; peer < count && status == OK; peer++)
        if (peer != cuda->index) status = to_peer(cuda, peer, mine, out);
    if (status == OK && count == 1) strbuf_puts(out, "         no other GPU: no NVLink to measure\n");
    cudaFree(mine);
    return status;
}
