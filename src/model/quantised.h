/* Model folders whose matrices are stored as codes with scales. In the opened file one tensor made of a matrix's parts (StMade) takes their
 * place: whoever reads weights gets values, in the shape that the model has. */
#pragma once

#include "base/json.h"
#include "files/safetensors.h"
#include "ops/lowbit/dynamic_map.h"
#include "passes/quantise.h"

typedef enum QuantisedFormat {
    QUANTISED_NONE,
    QUANTISED_NF4,   /* bitsandbytes' 4 bit: NF4 codes in blocks of 64; scales in fp32, or quantised themselves */
    QUANTISED_FP8,   /* fine-grained FP8: E4M3 codes in tiles of 128 x 128, each with a scale to multiply by */
    QUANTISED_NVFP4, /* ModelOpt's: E2M1 codes in blocks of 16 along a row, each with an E4M3 scale; one fp32 scale for all */
} QuantisedFormat;

/* A matrix (rows, cols): its format and the parts it is made of. */
typedef struct QuantisedTensor {
    StMade            made; /* must come first; made.parts points to `parts` */
    QuantisedFormat   format;
    int64_t           rows, cols;
    float             offset;   /* added to the values of nested scales (NF4) */
    const DynamicMap *map;      /* the values that codes of nested scales stand for */
    StTensor          parts[3]; /* [0] codes; [1] scales (NF4: absmax); [2] NF4: nested absmax; NVFP4: the one scale for all */
} QuantisedTensor;

enum { QUANTISED_CODES, QUANTISED_SCALES, QUANTISED_OUTER };

/* The format's name in messages. */
const char *quantised_name(QuantisedFormat format);

/* *out: the format that `config` names: the quantization_config of config.json, or hf_quant_config.json. ERR_UNSUPPORTED says what can't be
 * read, and what can. path: the file that has `config`, for messages. */
NODISCARD Status quantised_parse(const JsonValue *config, const char *path, QuantisedFormat *out);

/* Replaces the tensors of each quantised matrix in `file` by one tensor of dtype `as`. Errors name file and tensor: a part is missing, or
 * of another dtype or shape. The new tensors live in `arena`. */
NODISCARD Status quantised_open(Arena *arena, StFile *file, QuantisedFormat format, StDType as);

/* The quantised matrix behind a tensor; NULL: the tensor isn't quantised. */
const QuantisedTensor *quantised_of(const StTensor *tensor);

/* The format in which a plan can keep a matrix stored like this unchanged; NULL: none. */
const WeightFormat *quantised_weight_format(const QuantisedTensor *tensor);
/* The matrix of `file` to which the folder's tensor named `stored` belongs; NULL: to no matrix. *out_part: which part of the matrix's
 * format that tensor holds; -1: none, as that tensor doesn't depend on the matrix's values. */
const StTensor *quantised_owner(const StFile *file, QuantisedFormat format, const char *stored, int *out_part);
/* decl declares the part as the folder stores it; changes decl to fit the part made anew from other values. */
void quantised_declare(const QuantisedTensor *tensor, int part, StDecl *decl);
/* Appends a part: `data`, or, if the part is NF4's offset, the text of `stored` with the offset at `data`. */
NODISCARD Status quantised_append(const QuantisedTensor *tensor, const StTensor *stored, int part, const void *data, FileWriter *out);
/* Part k of the matrix, in the dtype of its format; k = made.num_parts: NF4's offset. *scratch is NULL at first; it is reallocated to hold
 * a part that is stored in another dtype. The caller frees it. */
const void *quantised_part(const QuantisedTensor *tensor, int k, float **scratch);
