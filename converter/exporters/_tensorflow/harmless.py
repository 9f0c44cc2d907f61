"""Operators of TensorFlow that compute from their inputs alone: no file, no network, no call back into Python.

A list of what is allowed, since what is forbidden cannot be listed: `ReadFile` counts as stateless in TensorFlow,
and shape inference runs such operators while a graph is only being imported. What tf2onnx has a form for is
allowed too (`scan.py` adds it); what stands here is the rest of what saved models hold.
"""

from __future__ import annotations

_VARIABLES = """
    DisableCopyOnRead VarHandleOp ReadVariableOp AssignVariableOp AssignAddVariableOp AssignSubVariableOp
    VarIsInitializedOp
    VariableShape ResourceGather ResourceGatherNd ResourceScatterAdd ResourceScatterUpdate
    ResourceStridedSliceAssign Variable VariableV2 Assign AssignAdd AssignSub IsVariableInitialized
    _VarHandlesOp _ReadVariablesOp
"""
_CALLS = """
    PartitionedCall StatefulPartitionedCall Assert Case StatelessCase For Switch RefSwitch Merge RefMerge Enter
    RefEnter Exit RefExit NextIteration RefNextIteration LoopCond ControlTrigger RefIdentity DeepCopy Snapshot
    PreventGradient _SwitchN
"""
_CONTAINERS = """
    EmptyTensorList TensorListPushBack TensorListPushBackBatch TensorListPopBack TensorListElementShape
    TensorListConcat TensorListConcatV2 TensorListConcatLists TensorListSplit TensorListGather TensorListScatter
    TensorListScatterV2 TensorListScatterIntoExistingList TensorArrayV3 TensorArrayReadV3 TensorArrayWriteV3
    TensorArrayGatherV3 TensorArrayScatterV3 TensorArraySizeV3 TensorArrayConcatV3 TensorArraySplitV3
    TensorArrayCloseV3 TensorArrayGradV3 StackV2 StackPushV2 StackPopV2 Empty
"""
_TABLES = """
    HashTable MutableHashTable MutableHashTableV2 MutableHashTableOfTensorsV2 MutableDenseHashTableV2
    AnonymousHashTable AnonymousMutableHashTable InitializeTable InitializeTableV2 LookupTableFind
    LookupTableSize LookupTableInsertV2 LookupTableRemoveV2 LookupTableImportV2 LookupTableExportV2
"""
_MATHEMATICS = """
    Rank ShapeN LinSpace Log1p Expm1 Erfc Erfinv Ndtri Lgamma Digamma Polygamma Zeta Igamma Igammac Betainc
    Xlogy Xlog1py Xdivy Mod TruncateMod MulNoNan NextAfter BesselI0e BesselI1e BesselI0 BesselI1 Real Imag Conj
    Complex Angle IFFT FFT2D IFFT2D FFT3D IFFT3D IRFFT IRFFT2D RFFT3D IRFFT3D Cross L2Loss ApproximateEqual
    Bucketize HistogramFixedWidth InTopK InTopKV2 TopK Qr Svd SelfAdjointEig SelfAdjointEigV2 Cholesky
    MatrixSolve MatrixSolveLs MatrixTriangularSolve MatrixSetDiag MatrixSetDiagV2 MatrixExponential
    MatrixLogarithm LogMatrixDeterminant Lu TridiagonalSolve EuclideanNorm CumulativeLogsumexp BroadcastArgs
    BroadcastGradientArgs SegmentSumV2 SegmentMaxV2 SegmentMinV2 SegmentProdV2 SparseMatMul
    SparseTensorDenseMatMul SparseTensorDenseAdd SparseReorder SparseSlice SparseConcat SparseSoftmax
    SparseReduceSum SparseReduceMax SparseToSparseSetOperation UnsortedSegmentJoin UniqueV2 UniqueWithCountsV2
    ListDiff SetSize Bitcast PopulationCount UnravelIndex ScatterNdNonAliasingAdd TensorScatterMax Batch Unbatch
    DataFormatVecPermute DataFormatDimMap Reverse CheckNumericsV2 Copy Diag DiagPart AccumulateNV2 FakeParam
    RaggedTensorToVariantGradient RaggedCross SparseCountSparseOutput DenseCountSparseOutput
    RaggedCountSparseOutput RaggedBincount SparseBincount LowerBound UpperBound RiscAdd
"""
_NETWORKS = """
    Softmax SoftmaxCrossEntropyWithLogits BatchNormWithGlobalNormalization Dilation2D FractionalMaxPool
    FractionalAvgPool MaxPoolGrad Conv Conv2DBackpropInputV2 Conv2DBackpropFilter
    DepthwiseConv2dNativeBackpropInput FusedPadConv2D FusedResizeAndPadConv2D _FusedConv2D _FusedMatMul
    _FusedBatchNormEx _FusedDepthwiseConv2dNative _FusedConv3D BlockLSTM BlockLSTMV2 GRUBlockCell CudnnRNNV2
    CudnnRNNV3 CTCLoss CTCBeamSearchDecoder SpaceToBatch BatchToSpace NthElement ComputeAccidentalHits Einsum
    XlaEinsum XlaDot QuantizeV2 Dequantize QuantizeAndDequantize QuantizeAndDequantizeV2 QuantizeAndDequantizeV3
    QuantizeAndDequantizeV4 FakeQuantWithMinMaxVarsPerChannel QuantizedMatMul QuantizedConv2D QuantizedRelu
    Requantize RequantizationRange UniformQuantize UniformDequantize
"""
_CHANCE = """
    StatelessRandomUniform StatelessRandomUniformV2 StatelessRandomUniformInt StatelessRandomUniformIntV2
    StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatelessRandomNormal StatelessRandomNormalV2
    StatelessTruncatedNormal StatelessTruncatedNormalV2 StatelessMultinomial StatelessRandomGetKeyCounter
    StatelessRandomGetKeyCounterAlg StatelessRandomGetAlg StatelessShuffle StatelessRandomGammaV2
    StatelessParameterizedTruncatedNormal TruncatedNormal RandomGamma RandomPoissonV2 RngSkip RngReadAndSkip
    StatefulUniform StatefulUniformInt StatefulUniformFullInt StatefulStandardNormalV2 StatefulTruncatedNormal
    LogUniformCandidateSampler UniformCandidateSampler
"""
_TEXT_AND_PICTURES = """
    StringJoin StringLower StringUpper StringSplit StringSplitV2 ReduceJoin StringToNumber AsString
    StaticRegexReplace RegexSplitWithOffsets StringToHashBucketFast StringLength StringStrip StringFormat
    StringNGrams Substr RegexReplace RegexFullMatch StaticRegexFullMatch StringToHashBucket
    StringToHashBucketStrong UnicodeDecode UnicodeDecodeWithOffsets UnicodeEncode UnicodeTranscode UnicodeScript
    EncodeBase64 DecodeBase64 DecodeRaw DecodePaddedRaw DecodeCSV ParseTensor SerializeTensor ParseExample
    ParseExampleV2 ParseSingleExample ParseSequenceExample ParseSequenceExampleV2 Fingerprint DecodeJpeg
    DecodePng DecodeGif DecodeBmp DecodeImage DecodeAndCropJpeg ExtractJpegShape EncodeJpeg EncodePng DecodeWav
    EncodeWav AudioSpectrogram Mfcc AdjustContrast RGBToHSV HSVToRGB ResizeNearestNeighbor ResizeBilinear
    ScaleAndTranslate CropAndResize DrawBoundingBoxes DrawBoundingBoxesV2 ExtractGlimpse ExtractGlimpseV2
    ImageProjectiveTransformV2 ImageProjectiveTransformV3 NonMaxSuppression NonMaxSuppressionWithOverlaps
    GenerateBoundingBoxProposals ExtractVolumePatches QuantizedResizeBilinear
"""

HARMLESS = frozenset(
    name
    for family in (
        _VARIABLES, _CALLS, _CONTAINERS, _TABLES, _MATHEMATICS, _NETWORKS, _CHANCE, _TEXT_AND_PICTURES,
    )
    for name in family.split()
)  # fmt: skip
"""Names of operators, beside those that tf2onnx has a form for."""

WAITS = frozenset(
    {
        "FIFOQueueV2",
        "QueueDequeueV2",
        "QueueDequeueManyV2",
        "QueueDequeueUpToV2",
        "IteratorV2",
        "IteratorGetNext",
    }
)
"""What tf2onnx takes for an input of the graph, and what would wait for ever in a graph without a feeder."""

SAVER = frozenset(
    {"SaveV2", "RestoreV2", "MergeV2Checkpoints", "ShardedFilename", "ShardedFilespec", "SaveSlices", "Save",
     "Restore", "RestoreSlice"}
)  # fmt: skip
"""What a SavedModel keeps its variables with. It reads and writes any path, so no answer may depend on it."""


def is_gradient(operator: str) -> bool:
    """Whether an operator is one of the gradients, which compute from their inputs like what they belong to."""
    return operator.endswith(("Grad", "GradGrad", "GradV2", "GradWithArgmax")) and operator[0].isupper()
