/* Model folders whose matrices are stored as codes with scales. In place of a matrix's own tensors the file gets one that is made of
 * them (StMade): whoever reads weights sees numbers in the shape that the model has. */
#pragma once

#include "base/json.h"
#include "files/safetensors.h"
#include "ops/lowbit/dynamic_map.h"
#include "passes/quantise.h"

typedef enum QuantisedFormat {
    QUANTISED_NONE,
    QUANTISED_NF4,   /* bitsandbytes' 4 bit: NF4 codes in blocks of 64, scales in fp32 or quantised again */
    QUANTISED_FP8,   /* fine-grained FP8: E4M3 codes in tiles of 128 x 128, a scale each, which multiplies */
    QUANTISED_NVFP4, /* ModelOpt's: E2M1 codes in blocks of 16 along a row, an E4M3 scale each, an fp32 scale of all */
} QuantisedFormat;

/* A matrix (rows, cols): its format and the parts it is made of. */
typedef struct QuantisedTensor {
    StMade            made; /* first; parts: as below */
    QuantisedFormat   format;
    int64_t           rows, cols;
    float             offset;   /* NF4 with nested scales */
    const DynamicMap *map;      /* what their codes stand for */
    StTensor          parts[3]; /* codes; absmax, or scales; nested (NF4), or the scale of all (NVFP4) */
} QuantisedTensor;

enum { QUANTISED_CODES, QUANTISED_SCALES, QUANTISED_OUTER };

/* The format's name in messages. */
const char *quantised_name(QuantisedFormat format);

/* What the quantization_config of config.json, or what stands in hf_quant_config.json, says. ERR_UNSUPPORTED names what isn't read, and
 * what is. path: of that file. */
NODISCARD Status quantised_parse(const JsonValue *config, const char *path, QuantisedFormat *out);

/* Puts a tensor of dtype `as` in the place of each quantised matrix's. Errors name file and tensor: parts that are missing, of another
 * dtype or shape. What is made lives in `arena`. */
NODISCARD Status quantised_open(Arena *arena, StFile *file, QuantisedFormat format, StDType as);

/* NULL: a tensor of numbers. */
const QuantisedTensor *quantised_of(const StTensor *tensor);

/* What a matrix that is stored like this can be kept in as it is; NULL: nothing. */
const WeightFormat *quantised_weight_format(const QuantisedTensor *tensor);
/* The matrix of `file` that a tensor of the folder as it lies there belongs to; NULL: to none. *out_part: the part of the matrix's format
 * that it holds; -1: none, it is the same for all numbers. */
const StTensor *quantised_owner(const StFile *file, QuantisedFormat format, const char *stored, int *out_part);
/* What declares a tensor with a part as it lies there is made to fit one of other numbers. */
void quantised_declare(const QuantisedTensor *tensor, int part, StDecl *decl);
/* Appends such a part: data, or what `stored` says with the offset at `data`. */
NODISCARD Status quantised_append(const QuantisedTensor *tensor, const StTensor *stored, int part, const void *data, FileWriter *out);
/* Part k of that format. scratch: where it is made that isn't stored like this, on the heap; the caller frees it. */
const void *quantised_part(const QuantisedTensor *tensor, int k, float **scratch);
