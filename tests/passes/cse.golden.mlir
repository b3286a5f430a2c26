module {
  func.func @main(%arg0: tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, %arg1: tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>> {
    %0 = "dhlo.mul"(%arg0, %arg1) : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %1 = "dhlo.add"(%0, %0) : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    return %1 : tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
  }
}
