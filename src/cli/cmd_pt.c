/* surogate pt run.yaml: pre-training and continued training on text. */
#include "cli/train_command.h"

Status cmd_pt(CliArgs *args)
{
    return cli_train(args);
}
