/* The linear ops on CUDA: each is one matrix product, described from types here and run by device/cuda/gemm.c. */
#pragma once

#include "device/cuda/gemm.h"
#include "device/device.h"
#include "ops/attrs.h"

enum { LINEAR_WORKSPACE = GPU_GEMM_WORKSPACE };

/* Data of a node's product aren't known when it is bound: a bias is any non-NULL pointer then. */
#define LINEAR_BIAS_THERE ((const void *)1)

/* Rows of an op whose product of a node is gemm_of_node(node) and of a launch gemm_of_args(args). */
#define LINEAR_KERNELS(op) \
    static bool op##_match(const Node *node, CudaDevice *device) \
    { \
        CudaGemm gemm = gemm_of_node(node); \
        return cuda_gemm_supported(device, &gemm); \
    } \
    static size_t op##_workspace(const Node *, CudaDevice *) \
    { \
        return LINEAR_WORKSPACE; \
    } \
    static Status op##_prepare(const KernelArgs *args) \
    { \
        CudaGemm gemm = gemm_of_args(args); \
        return cuda_gemm_prepare((CudaDevice *)args->device, &gemm, args->workspace, args->workspace_bytes); \
    } \
    static Status op##_cublas(const KernelArgs *args) \
    { \
        CudaGemm gemm = gemm_of_args(args); \
        return cuda_gemm_run((CudaDevice *)args->device, &gemm, args->workspace, args->workspace_bytes, args->stream); \
    } \
    static Status op##_plain(const KernelArgs *args) \
    { \
        CudaGemm gemm = gemm_of_args(args); \
        return cuda_gemm_plain(&gemm, args->stream); \
    } \
    CUDA_KERNELS(op, \
                 {.dtypes = DT_SET_FLOAT, \
                  .run = op##_cublas, \
                  .name = "cublaslt", \
                  .workspace = op##_workspace, \
                  .match = op##_match, \
                  .prepare = op##_prepare}, \
                 {.dtypes = DT_SET_FLOAT, .run = op##_plain, .name = "plain"})
