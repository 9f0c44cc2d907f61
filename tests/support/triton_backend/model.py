"""An onnxruntime backend for the Triton of the nvidia-pytriton wheel, which ships without the native one.

Triton runs this file in its own interpreter (.venvs/triton) as the python-based backend `onnxruntime`, so that a
published repository loads unchanged. It opens `<model>/<version>/model.onnx` and answers what that file computes.
"""

import json
import os

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

CONFIG_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(double)": "TYPE_FP64",
    "tensor(float)": "TYPE_FP32",
    "tensor(float16)": "TYPE_FP16",
    "tensor(string)": "TYPE_STRING",
    **{
        f"tensor({sign}int{bits})": f"TYPE_{sign.upper()}INT{bits}"
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}


def open_session(folder, config):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    path = os.path.join(folder, config.get("default_model_filename") or "model.onnx")
    return onnxruntime.InferenceSession(path, options)


def as_text(array):
    """Triton hands strings over as bytes, and onnxruntime would store their repr."""
    if array.dtype != object:
        return array
    texts = [value.decode() if isinstance(value, bytes) else value for value in array.ravel()]
    return np.array(texts, dtype=object).reshape(array.shape)


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        """Compare the config with the graph, or fill in what it leaves out."""
        given = config.as_dict()
        session = open_session(pb_utils.get_model_dir(), given)
        batched = given["max_batch_size"] > 0
        sides = (
            ("input", session.get_inputs(), config.add_input),
            ("output", session.get_outputs(), config.add_output),
        )
        for kind, nodes, add in sides:
            unknown = {tensor["name"] for tensor in given[kind]} - {node.name for node in nodes}
            if unknown:
                raise ValueError(f"unexpected {kind} {sorted(unknown)} for model '{given['name']}'")
            declared = {tensor["name"]: tensor for tensor in given[kind]}
            for node in nodes:
                dims = [dim if isinstance(dim, int) else -1 for dim in node.shape][1 if batched else 0 :]
                if "reshape" in declared.get(node.name, {}) or (node.name in declared and not dims):
                    continue  # Triton's helper knows no reshape
                add({"name": node.name, "data_type": CONFIG_TYPES[node.type], "dims": dims})
        return config

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.session = open_session(os.path.join(args["model_repository"], args["model_version"]), config)
        self.outputs = [output["name"] for output in config["output"]]
        # Triton logs "loading:" for versions that it then keeps; this line is for an instance that really began.
        pb_utils.Logger.log_info(
            f"began {args['model_instance_name']} of {args['model_name']}:{args['model_version']}"
        )

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        wanted = request.requested_output_names() or self.outputs
        feeds = {tensor.name(): as_text(tensor.as_numpy()) for tensor in request.inputs()}
        try:
            results = self.session.run(wanted, feeds)
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        pairs = zip(wanted, results, strict=True)
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, np.asarray(value)) for name, value in pairs])
