/* See model_flags.h. */
#include "cli/model_flags.h"

Status cli_open_model(InferModel *infer, const char *dir, const ModelArgs *m)
{
    *infer = (InferModel){0};
    TRY(cli_check_threads(m->threads));
    TRY(infer_open(infer, dir, m->adapter, m->device, (int)m->threads));
    TRY(infer_use_dtype(infer, m->dtype));
    TRY(infer_use_format(infer, m->qlora));
    return infer_use_recipe(infer, m->recipe);
}
