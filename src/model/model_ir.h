/* Where the IR of a model folder comes from. The first that is there: the file that the run names, surogate_ir.json of the folder, a
 * file of the folder that SUROGATE_MODELS names, a shipped one. All are data: no program is run. */
#pragma once

#include "ir/module.h"

/* `config`: the parsed config.json, whose architecture the IR must be of. ir: a file; NULL: none is named. */
NODISCARD Status model_ir_find(Arena *arena, const char *dir, const JsonValue *config, const char *config_name, const char *ir,
                               IrModule **out_module);
/* Notes which file the IR is of, with its SHA-256, unless it is a shipped one. */
void model_ir_tell(const IrModule *module, StrBuf *notes);
/* surogate_ir.json of a folder that is written, unless it is a shipped one. */
NODISCARD Status model_ir_write(const IrModule *module, const char *folder);
