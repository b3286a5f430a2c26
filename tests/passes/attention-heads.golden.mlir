module {
  func.func @main(%arg0: tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>, %arg1: tensor<?x2x?x8xf32, #dhlo.shape<["n", "2", "past + s", "8"]>>, %arg2: tensor<?x2x?x8xf32, #dhlo.shape<["n", "2", "past + s", "8"]>>) -> (tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>, tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>) {
    %0 = "dhlo.broadcast"(%arg1) {dims = [0, 1, 3, 4]} : (tensor<?x2x?x8xf32, #dhlo.shape<["n", "2", "past + s", "8"]>>) -> tensor<?x2x2x?x8xf32, #dhlo.shape<["n", "2", "2", "past + s", "8"]>>
    %1 = "dhlo.reshape"(%0) : (tensor<?x2x2x?x8xf32, #dhlo.shape<["n", "2", "2", "past + s", "8"]>>) -> tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "past + s", "8"]>>
    %2 = "dhlo.broadcast"(%arg2) {dims = [0, 1, 3, 4]} : (tensor<?x2x?x8xf32, #dhlo.shape<["n", "2", "past + s", "8"]>>) -> tensor<?x2x2x?x8xf32, #dhlo.shape<["n", "2", "2", "past + s", "8"]>>
    %3 = "dhlo.reshape"(%2) : (tensor<?x2x2x?x8xf32, #dhlo.shape<["n", "2", "2", "past + s", "8"]>>) -> tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "past + s", "8"]>>
    %4 = "dhlo.attention"(%arg0, %arg1, %arg2) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, past = "0", scale = 3.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>, tensor<?x2x?x8xf32, #dhlo.shape<["n", "2", "past + s", "8"]>>, tensor<?x2x?x8xf32, #dhlo.shape<["n", "2", "past + s", "8"]>>) -> tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>
    %5 = "dhlo.broadcast"(%arg1) {dims = [0, 2, 3, 4]} : (tensor<?x2x?x8xf32, #dhlo.shape<["n", "2", "past + s", "8"]>>) -> tensor<?x2x2x?x8xf32, #dhlo.shape<["n", "2", "2", "past + s", "8"]>>
    %6 = "dhlo.reshape"(%5) : (tensor<?x2x2x?x8xf32, #dhlo.shape<["n", "2", "2", "past + s", "8"]>>) -> tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "past + s", "8"]>>
    %7 = "dhlo.broadcast"(%arg2) {dims = [0, 2, 3, 4]} : (tensor<?x2x?x8xf32, #dhlo.shape<["n", "2", "past + s", "8"]>>) -> tensor<?x2x2x?x8xf32, #dhlo.shape<["n", "2", "2", "past + s", "8"]>>
    %8 = "dhlo.reshape"(%7) : (tensor<?x2x2x?x8xf32, #dhlo.shape<["n", "2", "2", "past + s", "8"]>>) -> tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "past + s", "8"]>>
    %9 = "dhlo.attention"(%arg0, %6, %8) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, past = "0", scale = 3.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>, tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "past + s", "8"]>>, tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "past + s", "8"]>>) -> tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>
    return %4, %9 : tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>, tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>
  }
}
