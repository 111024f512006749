/* Products of few rows of f16: few_rows_bulk.cu. */
#include "ops/as_f16.cuh"

#include "device/cuda/tensor_map.h"
#include "ops/bulk.cuh"
#include "ops/products/few_rows_bulk_f16.cuh"

bool few_rows_bulk_fit_f16(const Gemm *gemm);

#define DT_BF16 DT_F16
#define elem_get any_get
#define elem_set any_set
#define few_rows_bulk_fit few_rows_bulk_fit_f16
#define few_rows_bulk_run few_rows_bulk_run_f16
#define few_rows_bulk_pair few_rows_bulk_pair_f16
#include "ops/products/few_rows_bulk.cu"
