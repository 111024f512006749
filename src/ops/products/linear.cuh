/* Ops that are matrix products on CUDA: described in ops/products/products.h, run by device/cuda/gemm.c one after another. */
#pragma once

#include "device/cuda/gemm.h"
#include "device/device.h"
#include "ops/products/few_rows.h"
#include "ops/products/products.h"

enum { LINEAR_WORKSPACE = GPU_GEMM_WORKSPACE };

static inline bool products_supported(CudaDevice *device, const Gemm *gemms, int count)
{
    for (int i = 0; i < count; i++)
        if (!cuda_gemm_supported(device, &gemms[i])) return false;
    return true;
}

static inline Status products_prepare(const KernelArgs *args, const Gemm *gemms, int count)
{
    for (int i = 0; i < count; i++) TRY(cuda_gemm_prepare((CudaDevice *)args->device, &gemms[i], args->workspace, args->workspace_bytes));
    return OK;
}

static inline Status products_run(const KernelArgs *args, const Gemm *gemms, int count)
{
    for (int i = 0; i < count; i++)
        TRY(cuda_gemm_run((CudaDevice *)args->device, &gemms[i], args->workspace, args->workspace_bytes, args->stream));
    return OK;
}

static inline Status products_plain(const KernelArgs *args, const Gemm *gemms, int count)
{
    for (int i = 0; i < count; i++) TRY(cuda_gemm_plain(&gemms[i], args->stream));
    return OK;
}

static inline bool products_are_few(const Gemm *gemms, int count)
{
    for (int i = 0; i < count; i++)
        if (!few_rows_fit(&gemms[i])) return false;
    return true;
}

static inline bool products_are_bulk(CudaDevice *device, const Gemm *gemms, int count)
{
    if (!few_rows_bulk_serves(device) || !products_are_few(gemms, count)) return false;
    for (int i = 0; i < count; i++)
        if (!few_rows_bulk_fit(&gemms[i])) return false;
    return true;
}

static inline Status products_few(const KernelArgs *args, const Gemm *gemms, int count)
{
    for (int i = 0; i < count; i++) TRY(few_rows_run(&gemms[i], args->stream));
    return OK;
}

/* Runs the products: one launch each, or one launch for two products, which have the same x. */
static inline Status products_bulk(const KernelArgs *args, const Gemm *gemms, int count)
{
    if (count == 2) return few_rows_bulk_pair(gemms, args->stream);
    for (int i = 0; i < count; i++) TRY(few_rows_bulk_run(&gemms[i], gemms[i].n, NULL, args->stream));
    return OK;
}

/* Defines the functions of the table rows FEW_ROWS(op), for decoding; they come before PRODUCT_ROWS(op). */
#define FEW_ROWS_KERNELS(op) \
    static bool op##_are_few(const Node *node, CudaDevice *) \
    { \
        NodeArgs storage; \
        Gemm     gemms[MAX_PRODUCTS]; \
        return products_are_few(gemms, products_note(node_args(node, &storage), gemms, op##_products(node_args(node, &storage), gemms))); \
    } \
    static Status op##_few(const KernelArgs *args) \
    { \
        Gemm gemms[MAX_PRODUCTS]; \
        return products_few(args, gemms, products_note(args, gemms, op##_products(args, gemms))); \
    } \
    static bool op##_are_bulk(const Node *node, CudaDevice *device) \
    { \
        NodeArgs storage; \
        Gemm     gemms[MAX_PRODUCTS]; \
        return products_are_bulk(device, gemms, \
                                 products_note(node_args(node, &storage), gemms, op##_products(node_args(node, &storage), gemms))); \
    } \
    static Status op##_bulk(const KernelArgs *args) \
    { \
        Gemm gemms[MAX_PRODUCTS]; \
        return products_bulk(args, gemms, products_note(args, gemms, op##_products(args, gemms))); \
    }

#define FEW_ROWS(op) \
    {.dtypes = DT_SET_DECODE, .min_sm = 90, .run = op##_bulk, .name = "few rows in bulk", .match = op##_are_bulk}, \
    { \
        .dtypes = DT_SET_DECODE, .min_sm = 80, .run = op##_few, .name = "few rows", .match = op##_are_few \
    }

/* Defines the functions of the table rows PRODUCT_ROWS(op), for an op whose products op##_products describes. */
#define PRODUCT_KERNELS(op) \
    static bool op##_match(const Node *node, CudaDevice *device) \
    { \
        NodeArgs storage; \
        Gemm     gemms[MAX_PRODUCTS]; \
        return products_supported(device, gemms, \
                                  products_note(node_args(node, &storage), gemms, op##_products(node_args(node, &storage), gemms))); \
    } \
    static size_t op##_workspace(const Node *, CudaDevice *) \
    { \
        return LINEAR_WORKSPACE; \
    } \
    static Status op##_prepare(const KernelArgs *args) \
    { \
        Gemm gemms[MAX_PRODUCTS]; \
        return products_prepare(args, gemms, products_note(args, gemms, op##_products(args, gemms))); \
    } \
    static Status op##_cublas(const KernelArgs *args) \
    { \
        Gemm gemms[MAX_PRODUCTS]; \
        return products_run(args, gemms, products_note(args, gemms, op##_products(args, gemms))); \
    } \
    static Status op##_plain(const KernelArgs *args) \
    { \
        Gemm gemms[MAX_PRODUCTS]; \
        return products_plain(args, gemms, products_note(args, gemms, op##_products(args, gemms))); \
    }

#define PRODUCT_ROWS(op) \
    {.dtypes = DT_SET_DECODE, \
     .run = op##_cublas, \
     .name = "cublaslt", \
     .workspace = op##_workspace, \
     .match = op##_match, \
     .prepare = op##_prepare}, \
    { \
        .dtypes = DT_SET_DECODE, .run = op##_plain, .name = "plain" \
    }
