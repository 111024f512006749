/* See model_flags.h. */
#include "cli/model_flags.h"

#include <string.h>

const char *cli_model_format(const ModelArgs *m)
{
    return m->quantization ? m->quantization : m->qlora;
}

Status cli_open_model(InferModel *infer, const char *dir, const ModelArgs *m)
{
    *infer = (InferModel){0};
    FAIL_IF(m->quantization && m->qlora && strcmp(m->quantization, m->qlora) != 0, ERR_INVALID,
            "--quantization %.100s and --qlora %.100s name two formats of the same matrices; give one", m->quantization, m->qlora);
    TRY(cli_check_threads(m->threads));
    TRY(infer_open(infer, dir, m->adapter, m->device, (int)m->threads));
    TRY(infer_use_dtype(infer, m->dtype));
    TRY(infer_use_format(infer, cli_model_format(m)));
    return infer_use_recipe(infer, m->recipe);
}
