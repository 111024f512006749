/* cuBLASLt and cuDNN, opened at run time. They are searched in the folders of SUROGATE_CUDA_LIBS if that is set, else in the CUDA
 * toolkit, system folders and pip's nvidia-* packages. The newest one found is used. If none is found and SUROGATE_CUDA_LIBS isn't set,
 * the loader's own paths are tried. */
#pragma once

#include "base/status.h"

#include <cublasLt.h>
#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>
#define HAVE_CUDNN 1
#else
#define HAVE_CUDNN 0
#endif

/* Functions we call: X(name). */
/* clang-format off */
#define CUBLASLT_FUNCTIONS(X)                                                                                             \
    X(cublasLtCreate) X(cublasLtDestroy) X(cublasLtGetVersion) X(cublasLtMatmul) X(cublasLtMatmulDescCreate)              \
    X(cublasLtMatmulDescSetAttribute) X(cublasLtMatmulDescDestroy) X(cublasLtMatrixLayoutCreate)                          \
    X(cublasLtMatrixLayoutDestroy) X(cublasLtMatmulPreferenceCreate) X(cublasLtMatmulPreferenceSetAttribute)              \
    X(cublasLtMatmulPreferenceDestroy) X(cublasLtMatmulAlgoGetHeuristic) X(cublasLtMatmulAlgoCheck)

#define CUDNN_FUNCTIONS(X)                                                                                                \
    X(cudnnGetVersion) X(cudnnCreate) X(cudnnDestroy) X(cudnnSetStream) X(cudnnBackendCreateDescriptor)                   \
    X(cudnnBackendDestroyDescriptor) X(cudnnBackendSetAttribute) X(cudnnBackendGetAttribute) X(cudnnBackendFinalize)      \
    X(cudnnBackendExecute) X(cudnnGetErrorString)
/* clang-format on */

typedef struct CudaLibraries {
    char   cublas_path[512], cudnn_path[512];
    size_t cublas_version, cudnn_version; /* 0: absent */
#define X(name) __typeof__(&name) name;
    CUBLASLT_FUNCTIONS(X)
#if HAVE_CUDNN
    CUDNN_FUNCTIONS(X)
#endif
#undef X
    cublasLtHandle_t blas;
#if HAVE_CUDNN
    cudnnHandle_t dnn;
#endif
} CudaLibraries;

/* Opens the libraries. Without cuBLASLt it fails, with a message that says where it was searched; cuDNN may be absent. */
NODISCARD Status cuda_libraries_open(CudaLibraries *out);
void             cuda_libraries_close(CudaLibraries *lib);
/* Opens another library, searched in the same places. soname: such as libnccl.so.2; package: of pip, such as nvidia_nccl. NULL: not
 * found. */
void *cuda_library_open(const char *soname, const char *package, char *out_path, size_t size);
#if HAVE_CUDNN
cudnnHandle_t cuda_cudnn_handle(CudaLibraries *lib); /* created at first use; NULL: cuDNN is absent */
#endif
