/* surogate sft run.yaml: fine-tuning on conversations and instructions, with the loss on the tokens that masks select. */
#include "cli/train_command.h"

Status cmd_sft(CliArgs *args)
{
    return cli_train(args);
}
