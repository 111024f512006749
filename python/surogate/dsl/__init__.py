"""Models as Python classes: docs/dsl.md."""

from surogate.dsl.dims import Dim as Dim
from surogate.dsl.graph import build as build
from surogate.dsl.graph import graph as graph
from surogate.dsl.spec import Array as Array
from surogate.dsl.spec import DslError as DslError
from surogate.dsl.spec import Key as Key
from surogate.dsl.spec import Module as Module
from surogate.dsl.spec import Param as Param
from surogate.dsl.spec import Size as Size
from surogate.dsl.spec import Tensor as Tensor
from surogate.dsl.spec import abstract as abstract
from surogate.dsl.spec import block as block
from surogate.dsl.spec import concat as concat
from surogate.dsl.spec import extends as extends
from surogate.dsl.spec import forward as forward
from surogate.dsl.spec import hf_config as hf_config
from surogate.dsl.spec import hf_mapping as hf_mapping
from surogate.dsl.spec import model as model
from surogate.dsl.spec import module as module
from surogate.dsl.spec import normal as normal
from surogate.dsl.spec import param as param
from surogate.dsl.spec import primitive as primitive
from surogate.dsl.spec import recompute as recompute
from surogate.dsl.spec import rows as rows
from surogate.dsl.spec import tied_to as tied_to
from surogate.dsl.spec import transpose as transpose
