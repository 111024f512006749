/* Matrix products on the CPU, in tiles of the result that the pool shares out. A tile is computed by one thread. Sums are cut along k by
 * shapes and dtypes alone (gemm_grid.h), so that results don't depend on the number of threads. */
#pragma once

#include "ops/infer.h"
#include "ops/products/products.h"

/* Bytes of scratch that gemm_run needs. Reads dims, strides, dtypes and trans, but no data. */
size_t gemm_workspace(const Gemm *gemm, int num_workers);

void gemm_run(const Gemm *gemm, ThreadPool *pool, void *workspace);

/* Computes the product by three loops in fp64, on this thread. */
void gemm_reference(const Gemm *gemm);

/* The cost of an op that is `count` products, one after another: 2 m n k operations each, and each matrix moved once. */
OpCost gemms_cost(const Gemm *gemms, int count);
size_t gemms_workspace(const Gemm *gemms, int count, int num_workers); /* the most bytes that one product needs */

/* Workspace and CPU kernels of an op whose products op##_products describes: op##_workspace, op##_tiles and op##_reference. */
#define GEMM_KERNELS(op) \
    static size_t op##_workspace(const Node *node, int num_workers) \
    { \
        NodeArgs storage; \
        Gemm     gemms[MAX_PRODUCTS]; \
        return gemms_workspace(gemms, products_note(node_args(node, &storage), gemms, op##_products(node_args(node, &storage), gemms)), \
                               num_workers); \
    } \
    static Status op##_tiles(const KernelArgs *args) \
    { \
        Gemm gemms[MAX_PRODUCTS]; \
        for (int i = 0, count = products_note(args, gemms, op##_products(args, gemms)); i < count; i++) \
            gemm_run(&gemms[i], args->pool, args->workspace); \
        return OK; \
    } \
    static Status op##_reference(const KernelArgs *args) \
    { \
        Gemm gemms[MAX_PRODUCTS]; \
        for (int i = 0, count = products_note(args, gemms, op##_products(args, gemms)); i < count; i++) gemm_reference(&gemms[i]); \
        return OK; \
    }

/* Defines op##_cost, also from op##_products. */
#define GEMM_COST(op) \
    static OpCost op##_cost(const Node *node) \
    { \
        NodeArgs storage; \
        Gemm     gemms[MAX_PRODUCTS]; \
        return gemms_cost(gemms, products_note(node_args(node, &storage), gemms, op##_products(node_args(node, &storage), gemms))); \
    }
