/* One parquet value as JSON, by what its column's type means. */
#pragma once

#include "data/parquet_decode.h"

void parquet_write_value(StrBuf *out, const ParquetNode *leaf, PqValue value);
