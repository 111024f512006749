/* Writes a parquet value as JSON, by the meaning of its column's type. */
#pragma once

#include "data/parquet_decode.h"

void parquet_write_value(StrBuf *out, const ParquetNode *leaf, PqValue value);
